"""Weights by depth in the agent tree: equal say for each depth's trajectories, or a discount per level.

Both keep the microbatch's total weight on action tokens, so the loss's scale does not move.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from platoon.credit.datum import Datum


class DepthError(ValueError):
    """A microbatch whose depths give no weight; the step fails."""


def depth_level_weights(datums: Sequence[Datum]) -> dict[int, float]:
    """Weight per depth d: 1/c_d (0 without a started trajectory) times sum(t) / sum(t/c).

    c_d counts started trajectories (`traj_start`), t_d action tokens. DepthError when the total of either is 0.
    """
    starts: dict[int, float] = defaultdict(float)
    tokens: dict[int, float] = defaultdict(float)
    for datum in datums:
        starts[datum.depth] += datum.traj_start
        tokens[datum.depth] += float(datum.mask_T.sum(dtype=np.float64))
    total = sum(tokens.values())
    weighted = sum(tokens[depth] / starts[depth] for depth in tokens if starts[depth] > 0)
    if total <= 0 or weighted <= 0:
        raise DepthError(f"depth weighting needs action tokens and started trajectories: {total=}, {weighted=}")
    return {depth: (1.0 / starts[depth]) * (total / weighted) if starts[depth] > 0 else 0.0 for depth in tokens}


def apply_depth_weighting(datums: Sequence[Datum]) -> list[Datum]:
    """Advantages times the weight of their datum's depth."""
    weights = depth_level_weights(datums)
    return _weighted(datums, lambda datum: weights[datum.depth])


def apply_depth_discount(datums: Sequence[Datum], gamma: float) -> list[Datum]:
    """Advantages times gamma^depth * sum(n) / sum(gamma^depth * n), n its action tokens. DepthError for no n."""
    counts = [float(datum.mask_T.sum(dtype=np.float64)) for datum in datums]
    weighted = sum(gamma**datum.depth * count for datum, count in zip(datums, counts, strict=True))
    total = sum(counts)
    if total <= 0 or weighted <= 0:
        raise DepthError(f"depth discount needs action tokens: {total=}, {weighted=}")
    return _weighted(datums, lambda datum: gamma**datum.depth * total / weighted)


def depth_metrics(before: Sequence[Datum], after: Sequence[Datum]) -> dict[str, float]:
    """`credit/max_depth` and `credit/depth<d>/{datums,trajectories,weight}` of a microbatch.

    weight: the depth's sum of |advantage| on action targets after the transforms over that before, where that is > 0.
    """
    found: dict[str, float] = {"credit/max_depth": float(max((datum.depth for datum in before), default=0))}
    mass_before, mass_after = _mass(before), _mass(after)
    for depth in sorted({datum.depth for datum in before}):
        here = [datum for datum in before if datum.depth == depth]
        found[f"credit/depth{depth}/datums"] = float(len(here))
        found[f"credit/depth{depth}/trajectories"] = sum(datum.traj_start for datum in here)
        if mass_before[depth] > 0:
            found[f"credit/depth{depth}/weight"] = mass_after[depth] / mass_before[depth]
    return found


def _weighted(datums: Sequence[Datum], weight: Callable[[Datum], float]) -> list[Datum]:
    return [replace(d, advantages_T=(d.advantages_T * np.float64(weight(d))).astype(np.float32)) for d in datums]


def _mass(datums: Sequence[Datum]) -> dict[int, float]:
    found: dict[int, float] = defaultdict(float)
    for datum in datums:
        found[datum.depth] += float(np.abs(datum.advantages_T[datum.mask_T > 0]).sum(dtype=np.float64))
    return found
