"""pass@k of an evaluation: the unbiased estimator, with an interval by bootstrap over tasks.

Source: Chen et al. 2021, "Evaluating Large Language Models Trained on Code": with c successes of n attempts at a task,
pass@k = 1 - C(n-c, k) / C(n, k), averaged over tasks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import comb

import numpy as np

RESAMPLES = 2000
SEED = 20_000


@dataclass(frozen=True)
class Estimate:
    """A mean over tasks and its 95 % interval. `tasks`: those with at least k valid attempts."""

    mean: float
    low: float
    high: float
    tasks: int


def pass_at_k(attempts: int, successes: int, k: int) -> float:
    """Probability that k of the attempts, drawn without replacement, hold a success. ValueError for k > attempts."""
    if not 1 <= k <= attempts or not 0 <= successes <= attempts:
        raise ValueError(f"pass@{k} of {successes} successes in {attempts} attempts does not exist")
    return 1.0 - comb(attempts - successes, k) / comb(attempts, k)


def estimate(counts: Sequence[tuple[int, int]], k: int) -> Estimate | None:
    """pass@k over tasks of (valid attempts, successes); None when no task has k attempts.

    Deterministic, and the same in any order of the tasks: a resample of N tasks is drawn as how often each distinct
    value occurs in it.
    """
    values = [pass_at_k(n, c, k) for n, c in counts if n >= k]
    if not values:
        return None
    values_U, times_U = np.unique(np.array(values, np.float64), return_counts=True)
    total = len(values)
    drawn_RU = np.random.default_rng(SEED).multinomial(total, times_U / total, RESAMPLES)
    low, high = np.quantile(drawn_RU @ values_U / total, (0.025, 0.975))
    return Estimate(float(times_U @ values_U / total), float(low), float(high), total)


def ladder(most: int) -> list[int]:
    """The k that a report shows: powers of two below `most`, then `most` itself."""
    return [1 << bit for bit in range(most.bit_length()) if 1 << bit < most] + ([most] if most else [])
