"""The shortest time in which any schedule could train given groups: what a simulated run is measured against.

Every schedule starts groups in the order of their draws, keeps the horizon and the permits, and trains batch after
batch, in whatever order groups end. The bound relaxes the rest: rollouts may share permits as a fluid. No schedule
beats it; none may reach it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt


@dataclass(frozen=True)
class Load:
    """`seconds_NG`: of each rollout of each group, in draw order; N is a whole number of batches."""

    seconds_NG: npt.NDArray[np.float64]
    batch_size: int
    max_staleness: int
    permits: int
    update_seconds: float


def least_seconds(load: Load) -> npt.NDArray[np.float64]:
    """Earliest end of each step's update, float64[steps].

    Step s cannot end before the cheapest (s + 1) batches of the groups that can have started by then are done: their
    work at full permits, and the longest rollout of each. Group n cannot start before step n // B - k - 1 has ended.
    """
    batch, ahead = load.batch_size, load.max_staleness
    count = len(load.seconds_NG)
    if count % batch:
        raise ValueError(f"{count} groups are no whole number of batches of {batch}")
    work_N = load.seconds_NG.sum(axis=1)
    longest_N = load.seconds_NG.max(axis=1)
    steps = count // batch
    end_S = np.zeros(steps)
    for step in range(steps):
        needed = (step + 1) * batch
        startable = min(count, (step + 1 + ahead) * batch)
        release_N = np.repeat([end_S[b - ahead - 1] if b > ahead else 0.0 for b in range(startable // batch)], batch)
        by_work = np.sort(work_N[:startable])[:needed].sum() / load.permits
        by_length = np.sort(release_N + longest_N[:startable])[needed - 1]
        before = end_S[step - 1] if step else 0.0
        end_S[step] = max(by_work, by_length, before) + load.update_seconds
    return end_S


def utilisation(load: Load, seconds: float) -> float:
    """Share of the permits in use over so many seconds."""
    return float(load.seconds_NG.sum() / (load.permits * seconds))
