"""What samplers and admission rules may read of the statistics: the store at one policy version, read only."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from platoon.stats.columns import TaskColumns
from platoon.stats.store import TaskStatsStore
from platoon.stats.totals import GroupTotals, TaskCounts, TaskStats


class TaskStatsView:
    """Statistics as of the last flush. `now` is the policy version beliefs are read at; `live` that they move on."""

    live = True

    def __init__(self, store: TaskStatsStore, now: Callable[[], int]) -> None:
        self._store = store
        self._now = now

    @property
    def now(self) -> int:
        return self._now()

    def task_ids(self) -> list[str]:
        """Distinct ids of the run's pool in listing order."""
        return self._store.task_ids()

    def counts(self, task_id: str) -> TaskCounts:
        """A task's counts; all zero for one outside the pool."""
        return self._store.counts(task_id)

    def task(self, task_id: str) -> TaskStats:
        """Everything known of a task. KeyError when it is not in the pool."""
        return self._store.task(task_id)

    def posterior(self, task_id: str) -> tuple[float, float]:
        """(alpha, beta) of the belief on a task's pass rate, now."""
        return self._store.posterior(task_id, now=self.now)

    def entry(self, name: str) -> GroupTotals:
        return self._store.entry(name)

    def label(self, label: str) -> GroupTotals:
        return self._store.label(label)

    def labels(self) -> list[str]:
        return self._store.labels()

    def group_size(self, entry: str | None) -> int:
        return self._store.group_size(entry)

    def threshold(self, entry: str | None) -> float:
        """Score from which an attempt passes."""
        return self._store.threshold(entry)

    def columns(self, task_ids: Sequence[str]) -> TaskColumns:
        """Arrays over distinct tasks that follow the statistics; `refresh` them at each decision."""
        return TaskColumns(self._store, task_ids)
