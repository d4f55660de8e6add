"""Counts and evidence of many tasks as arrays that follow the store: what a sampler reads at every decision.

Only tasks that changed since the last refresh are read again, so that a refresh costs the same for any pool.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from platoon.stats.passk import Counts, Vector
from platoon.stats.store import TaskStatsStore

NO_VERSION = np.iinfo(np.int64).min


class TaskColumns:
    """Arrays over `task_ids` (distinct, of the pool), current as of the last `refresh`."""

    def __init__(self, store: TaskStatsStore, task_ids: Sequence[str]) -> None:
        self._store = store
        self._changed = store.watch()
        self._index = {task_id: index for index, task_id in enumerate(task_ids)}
        if len(self._index) != len(task_ids):
            raise ValueError("task ids repeat")
        size = len(task_ids)
        self.groups_N: Counts = np.zeros(size, np.int64)
        self.outstanding_N: Counts = np.zeros(size, np.int64)
        self.reported_N: Counts = np.zeros(size, np.int64)
        self.silent_N: Counts = np.zeros(size, np.int64)
        self.version_N: Counts = np.full(size, NO_VERSION, np.int64)
        self._passes_N: Vector = np.zeros(size)
        self._fails_N: Vector = np.zeros(size)
        entries = [store.entry_of(task_id) for task_id in task_ids]
        self._entries = list(dict.fromkeys(entries))
        codes = {entry: code for code, entry in enumerate(self._entries)}
        self._entry_N: Counts = np.array([codes[entry] for entry in entries], np.int64)
        self._changed.update(self._index)
        self.refresh()

    def refresh(self) -> None:
        """Read the tasks that changed since the last time."""
        if not self._changed:
            return
        changed = [task_id for task_id in self._changed if task_id in self._index]
        self._changed.clear()
        for task_id in changed:
            i = self._index[task_id]
            counts, evidence = self._store.counts(task_id), self._store.evidence(task_id)
            self.groups_N[i], self.outstanding_N[i] = counts.groups, counts.outstanding
            self.reported_N[i] = self._store.reported(task_id)
            self.silent_N[i] = counts.no_evidence_streak
            self._passes_N[i], self._fails_N[i] = evidence.first, evidence.second
            self.version_N[i] = NO_VERSION if evidence.version is None else evidence.version

    def posterior(self, index_C: Counts, *, now: int) -> tuple[Vector, Vector]:
        """Alpha and beta, float64[C], of the tasks at these places, at policy version `now`."""
        rates = np.array([self._store.prior_rate(entry, now=now) for entry in self._entries])
        rate_C = rates[self._entry_N[index_C]]
        version_C = self.version_N[index_C]
        age_C = np.where(version_C == NO_VERSION, 0, np.maximum(now - np.maximum(version_C, 0), 0))
        fade_C = np.exp2(-age_C / self._store.half_life)
        strength = self._store.prior_strength
        alpha_C = strength * rate_C + self._passes_N[index_C] * fade_C
        return alpha_C, strength * (1.0 - rate_C) + self._fails_N[index_C] * fade_C
