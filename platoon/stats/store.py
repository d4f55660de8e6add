"""Per-task statistics of a run: what was drawn, what settled, and how likely a task is to pass.

Settled groups may be held and are then taken in by (start, seq): sums, streaks and history never depend on the order in
which groups happened to finish. No clock, no files; `snapshot` and `load` carry the whole state.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from platoon.stats.decayed import Decayed
from platoon.stats.schema import EntryInfo, Fate, GroupRecord
from platoon.stats.totals import GroupTotals, TaskCounts, TaskStats, TaskTotals, Totals

SNAPSHOT_FORMAT = 1
Outstanding = tuple[int, int, str, int | None]


class TaskStatsStore:
    """Statistics of a pool of tasks, `(id, entry, label)` in listing order; a repeated id counts once."""

    def __init__(
        self,
        tasks: Iterable[tuple[str, str | None, str | None]] = (),
        entries: Mapping[str, EntryInfo] | None = None,
        *,
        column: str = "_platoon_environment",
        group_size: int = 1,
        half_life: float = 32.0,
        prior_strength: float = 2.0,
        no_evidence_limit: int = 3,
    ) -> None:
        self.column = column
        self.half_life, self.prior_strength, self.no_evidence_limit = half_life, prior_strength, no_evidence_limit
        self._group_size = group_size
        self._info = dict(entries or {})
        self._tasks: dict[str, TaskTotals] = {}
        for task_id, entry, label in tasks:
            self._tasks.setdefault(task_id, TaskTotals(entry=entry, label=label))
        self._entries = {name: Totals() for name in self._info}
        self._labels: dict[str, Totals] = {t.label: Totals() for t in self._tasks.values() if t.label is not None}
        self._run = Totals()
        self._outstanding: dict[tuple[int, int], tuple[str, int | None]] = {}
        self._held: list[GroupRecord] = []
        self._saved: dict[str, dict[str, Any]] = {}  # tasks as of the last snapshot, less those that changed since
        self._watchers: list[set[str]] = []

    # --- draws -------------------------------------------------------------------------------------------------

    @property
    def outstanding(self) -> list[Outstanding]:
        """Draws without a fate, `(start, seq, task_id, position)`, in the order they were made."""
        return [(*key, *value) for key, value in self._outstanding.items()]

    def draw(self, start: int, seq: int, task_id: str, position: int | None = None) -> None:
        """A task was drawn."""
        self._outstanding[start, seq] = (task_id, position)
        if (task := self._tasks.get(task_id)) is not None:
            task.drawn += 1
            task.outstanding += 1
            self._touch(task_id)

    def fate(self, start: int, seq: int, fate: Fate, task_id: str | None = None) -> None:
        """What became of a draw. One that is not outstanding counts only under the `task_id` given."""
        drawn = self._outstanding.pop((start, seq), None)
        task_id = drawn[0] if drawn is not None else task_id or ""
        task = self._tasks.get(task_id)
        if task is not None:
            self._touch(task_id)
            task.fates[fate] += 1
            task.outstanding -= drawn is not None

    def _touch(self, task_id: str) -> None:
        self._saved.pop(task_id, None)
        for changed in self._watchers:
            changed.add(task_id)

    def watch(self) -> set[str]:
        """A set that gathers the ids of tasks whose counts or evidence change; the caller empties it."""
        changed: set[str] = set()
        self._watchers.append(changed)
        return changed

    def reissue(self, old: tuple[int, int], new: tuple[int, int]) -> bool:
        """Give an outstanding draw a new key: the same draw, made again. False when `old` is not outstanding."""
        drawn = self._outstanding.pop(old, None)
        if drawn is None:
            return False
        self._outstanding[new] = drawn
        return True

    def lose_outstanding(self) -> list[Outstanding]:
        """Give every outstanding draw the fate `lost`, and say which they were."""
        lost = self.outstanding
        for start, seq, _, _ in lost:
            self.fate(start, seq, "lost")
        return lost

    # --- groups ------------------------------------------------------------------------------------------------

    @property
    def intake(self) -> int:
        """Groups taken in so far: the intake index of the next one."""
        return self._run.groups

    def hold(self, record: GroupRecord) -> None:
        """Keep a settled group until the next flush."""
        self._held.append(record)

    def flush(self) -> list[tuple[int, GroupRecord]]:
        """Take in the held groups by (start, seq); returns them with their intake indices."""
        held, self._held = sorted(self._held, key=lambda record: (record.start, record.seq)), []
        return [(self._take_in(record), record) for record in held]

    def settle(self, record: GroupRecord) -> None:
        """Take in a group at once, after any that are held before it in draw order."""
        self.hold(record)
        self.flush()

    def _take_in(self, record: GroupRecord) -> int:
        index = self._run.groups
        task = self._tasks.get(record.task_id)
        threshold = self.threshold(task.entry if task is not None else record.entry)
        sums: list[Totals | None] = [self._run, task]
        if task is not None:
            self._touch(record.task_id)
            sums += [self._entries.get(task.entry or ""), self._labels.get(task.label or "")]
        for found in sums:
            if found is not None:
                found.take_in(record, threshold, self.half_life)
        return index

    # --- reading -----------------------------------------------------------------------------------------------

    def task_ids(self) -> list[str]:
        return list(self._tasks)

    def task(self, task_id: str) -> TaskStats:
        """Everything known of a task. KeyError when it is not in the pool."""
        if task_id not in self._tasks:
            raise KeyError(f"task {task_id!r} is not in the run's pool")
        return self._tasks[task_id].stats(task_id, self.half_life)

    def counts(self, task_id: str) -> TaskCounts:
        """A task's counts; all zero for one outside the pool."""
        task = self._tasks.get(task_id)
        return task.counts() if task is not None else TaskCounts()

    def evidence(self, task_id: str) -> Decayed:
        """A task's passes and fails as of its newest evidence. KeyError when it is not in the pool."""
        return self._tasks[task_id].evidence

    def entry_of(self, task_id: str) -> str | None:
        """The entry that listed a task; None outside the pool."""
        task = self._tasks.get(task_id)
        return task.entry if task is not None else None

    def label_of(self, task_id: str) -> str | None:
        """A task's label. KeyError when it is not in the pool."""
        return self._tasks[task_id].label

    def reported(self, task_id: str) -> int:
        """Groups of a task that had members. KeyError when it is not in the pool."""
        return self._tasks[task_id].reported

    def entry(self, name: str) -> GroupTotals:
        return GroupTotals(**self._entries[name].fields(self.half_life))

    def label(self, label: str) -> GroupTotals:
        return GroupTotals(**self._labels[label].fields(self.half_life))

    def run(self) -> GroupTotals:
        return GroupTotals(**self._run.fields(self.half_life))

    def labels(self) -> list[str]:
        """Labels of the pool, in listing order."""
        return list(self._labels)

    def threshold(self, entry: str | None) -> float:
        """Score from which an attempt passes."""
        info = self._info.get(entry or "")
        return info.success_threshold if info is not None else 1.0

    def thresholds(self) -> set[float]:
        """Every value that `threshold` gives."""
        return {1.0, *(info.success_threshold for info in self._info.values())}

    def group_size(self, entry: str | None) -> int:
        info = self._info.get(entry or "")
        return info.group_size if info is not None else self._group_size

    def prior_rate(self, entry: str | None, *, now: int) -> float:
        """Expected pass rate of a task of an entry that was never tried: (1 + P) / (2 + P + F)."""
        passes, fails = self._entries.get(entry or "", self._run).evidence.read(now, self.half_life)
        return (1.0 + passes) / (2.0 + passes + fails)

    def posterior(self, task_id: str, *, now: int) -> tuple[float, float]:
        """(alpha, beta) of the belief on a task's pass rate at policy version `now`."""
        task = self._tasks.get(task_id)
        rate = self.prior_rate(task.entry if task is not None else None, now=now)
        passes, fails = task.evidence.read(now, self.half_life) if task is not None else (0.0, 0.0)
        return self.prior_strength * rate + passes, self.prior_strength * (1.0 - rate) + fails

    # --- state -------------------------------------------------------------------------------------------------

    def snapshot(self, *, start: int, next_seq: int) -> dict[str, Any]:
        """The whole state as plain values that never change: another thread may write them.

        Takes time for the tasks that changed since the last one. ValueError while groups are held: flush first, so that
        they are recorded.
        """
        if self._held:
            raise ValueError(f"{len(self._held)} settled groups are held; flush the statistics before a snapshot")
        return {
            "format": SNAPSHOT_FORMAT,
            "start": start,
            "next_seq": next_seq,
            "column": self.column,
            "group_size": self._group_size,
            "half_life_versions": self.half_life,
            "prior_strength": self.prior_strength,
            "no_evidence_limit": self.no_evidence_limit,
            "entries": {
                name: {
                    "group_size": info.group_size,
                    "success_threshold": info.success_threshold,
                    "totals": self._entries[name].as_dict(),
                }
                for name, info in self._info.items()
            },
            "labels": {label: totals.as_dict() for label, totals in self._labels.items()},
            "run": self._run.as_dict(),
            "tasks": self._task_states(),
            "outstanding": [list(drawn) for drawn in self.outstanding],
        }

    def _task_states(self) -> dict[str, dict[str, Any]]:
        saved = self._saved
        self._saved = {i: saved[i] if i in saved else task.as_dict() for i, task in self._tasks.items()}
        return dict(self._saved)

    def load(self, data: Mapping[str, Any]) -> None:
        """Take over a snapshot's counts. Tasks, entries and labels that this run does not have are left out; sizes and
        thresholds stay this run's. ValueError for another format, KeyError or TypeError for a broken one.
        """
        if data.get("format") != SNAPSHOT_FORMAT:
            raise ValueError(f"statistics have format {data.get('format')!r}; this platoon reads {SNAPSHOT_FORMAT}")
        self._saved = {}
        self._run.load(data["run"])
        for name, totals in self._entries.items():
            if name in data["entries"]:
                totals.load(data["entries"][name]["totals"])
        for label, totals in self._labels.items():
            if label in data["labels"]:
                totals.load(data["labels"][label])
        for task_id, task in self._tasks.items():
            if task_id in data["tasks"]:
                task.load(data["tasks"][task_id])
        self._outstanding = {(start, seq): (task_id, position) for start, seq, task_id, position in data["outstanding"]}
        for changed in self._watchers:
            changed.update(self._tasks)

    @classmethod
    def from_snapshot(cls, data: Mapping[str, Any]) -> TaskStatsStore:
        """A store of the snapshot's own tasks and entries, for reading a run that is not at hand."""
        entries = {
            name: EntryInfo(group_size=info["group_size"], success_threshold=info["success_threshold"], name=name)
            for name, info in data["entries"].items()
        }
        store = cls(
            [(task_id, task["entry"], task["label"]) for task_id, task in data["tasks"].items()],
            {name: replace(info, index=index) for index, (name, info) in enumerate(entries.items())},
            column=data["column"],
            group_size=data["group_size"],
            half_life=data["half_life_versions"],
            prior_strength=data["prior_strength"],
            no_evidence_limit=data["no_evidence_limit"],
        )
        store.load(data)
        return store
