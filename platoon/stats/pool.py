"""`tasks/*` of a training step: what is known of the whole pool, and of each label's tasks.

Reads only the tasks that changed since the last step, so that a step costs the same for any pool (milliseconds for
100,000 tasks).
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from platoon.stats.columns import TaskColumns
from platoon.stats.passk import PASS_BANDS, Counts, Vector, bands, pass_at_array
from platoon.stats.store import TaskStatsStore


class PoolMetrics:
    """Metrics over the store's tasks. `prefixes`: label to the place of its own series."""

    def __init__(self, store: TaskStatsStore, prefixes: Mapping[str, str]) -> None:
        ids = store.task_ids()
        self._columns = TaskColumns(store, ids)
        self._limit = store.no_evidence_limit
        self._places = ["tasks/", *(f"tasks/{place}/" for place in prefixes.values())]
        codes = {label: code for code, label in enumerate(prefixes, start=1)}
        labels = [store.label_of(task_id) for task_id in ids]
        self._place_N: Counts = np.array([codes.get(label or "", 0) for label in labels], np.int64)
        self._size_N: Counts = np.array([store.group_size(store.entry_of(task_id)) for task_id in ids], np.int64)

    def at(self, now: int) -> dict[str, float]:
        """The metrics at policy version `now`; no mean where no task was tried."""
        self._columns.refresh()
        all_N = np.arange(len(self._place_N))
        seen_C = np.flatnonzero(self._columns.reported_N > 0)
        alpha_C, beta_C = self._columns.posterior(seen_C, now=now)
        rate_C = alpha_C / (alpha_C + beta_C)
        band_C = bands(rate_C)
        series = {
            "no_evidence": self._sums(np.flatnonzero(self._columns.silent_N >= self._limit)),
            **{f"bands/{name}": self._sums(seen_C[band_C == number]) for number, name in enumerate(PASS_BANDS)},
        }
        tasks_P, seen_P = self._sums(all_N), self._sums(seen_C)
        series["coverage"] = seen_P / np.maximum(tasks_P, 1)
        found = {place + key: float(values_P[i]) for key, values_P in series.items() for i, place in self._numbered()}
        passed_P = self._sums(seen_C, rate_C)
        groups_P = self._sums(seen_C, pass_at_array(alpha_C, beta_C, self._size_N[seen_C]))
        for i, place in self._numbered():
            if seen_P[i]:
                found[f"{place}pass_at_1"] = float(passed_P[i] / seen_P[i])
                found[f"{place}pass_at_G"] = float(groups_P[i] / seen_P[i])
        return found

    def _numbered(self) -> list[tuple[int, str]]:
        return list(enumerate(self._places))

    def _sums(self, index_C: Counts, values_C: Vector | None = None) -> Vector:
        """Values (1 each without any) of these tasks summed by place, float64[P]; the first place is all tasks'."""
        sums_P = np.bincount(self._place_N[index_C], values_C, len(self._places)).astype(np.float64)
        sums_P[0] = sums_P.sum()
        return sums_P
