"""Sums over groups: of one task, an entry, a label or the run.

The accumulators change as groups are taken in; readers get the frozen records.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from platoon.stats.decayed import Decayed
from platoon.stats.schema import FATES, GroupRecord, MemberResult

KINDS = ("informative", "all_pass", "all_fail", "uniform_mixed")
MEANS = ("steps", "output_tokens", "seconds", "reward")
HISTORY = 8


class GroupSummary(NamedTuple):
    """One group in a task's history. `version`: oldest sampled. `steps` is a mean over members, `seconds` a maximum."""

    start: int
    seq: int
    version: int | None
    valid: int
    passes: int
    reward_mean: float | None
    verdict: str
    steps: float | None
    seconds: float | None


class TaskCounts(NamedTuple):
    """The few counts that samplers ask for at every draw."""

    groups: int = 0
    outstanding: int = 0
    drawn: int = 0
    uniform_streak: int = 0
    no_evidence_streak: int = 0
    evidence_version: int | None = None


@dataclass(frozen=True)
class GroupTotals:
    """Counts since the run began. `reported_groups` had members; `attempts` are valid members; `decayed` fades."""

    groups: int
    reported_groups: int
    attempts: int
    passes: int
    reward_sum: float
    informative_groups: int
    all_pass_groups: int
    all_fail_groups: int
    uniform_mixed_groups: int
    decayed: tuple[float, float, int | None]
    half_life: float

    def evidence(self, *, now: int) -> tuple[float, float]:
        """Passes and fails, faded to version `now`."""
        return Decayed(*self.decayed).read(now, self.half_life)


@dataclass(frozen=True)
class TaskStats(GroupTotals):
    """Everything known of one task."""

    task_id: str
    entry: str | None
    label: str | None
    uniform_streak: int
    no_evidence_streak: int
    outstanding: int
    drawn: int
    fates: Mapping[str, int]
    history: tuple[GroupSummary, ...]
    means: Mapping[str, tuple[float, float, int | None]]

    def metric(self, name: str, *, now: int) -> float | None:
        """Recent mean of `steps`, `output_tokens`, `seconds` or `reward`; None without a value. KeyError otherwise."""
        if name not in MEANS:
            raise KeyError(f"no mean {name!r}: a task has {', '.join(MEANS)}")
        total, count = Decayed(*self.means.get(name, (0.0, 0.0, None))).read(now, self.half_life)
        return total / count if count > 0 else None


@dataclass
class Totals:
    """Accumulator behind `GroupTotals`."""

    groups: int = 0
    reported: int = 0
    attempts: int = 0
    passes: int = 0
    reward_sum: float = 0.0
    kinds: Counter[str] = field(default_factory=Counter)
    evidence: Decayed = field(default_factory=Decayed)

    def take_in(self, record: GroupRecord, threshold: float, half_life: float) -> None:
        valid, passes = record.valid, record.passes(threshold)
        self.groups += 1
        self.reported += bool(record.members)
        self.attempts += valid
        self.passes += passes
        self.reward_sum += sum(m.reward for m in record.members if m.valid and m.reward is not None)
        kind = record.kind(threshold)
        if kind is not None:
            self.kinds[kind] += 1
        version = record.oldest_version
        if valid > 0 and version is not None:
            self.evidence.add(passes, valid - passes, version, half_life)

    def fields(self, half_life: float) -> dict[str, Any]:
        """The fields of a `GroupTotals`."""
        return {
            "groups": self.groups,
            "reported_groups": self.reported,
            "attempts": self.attempts,
            "passes": self.passes,
            "reward_sum": self.reward_sum,
            **{f"{kind}_groups": self.kinds[kind] for kind in KINDS},
            "decayed": (self.evidence.first, self.evidence.second, self.evidence.version),
            "half_life": half_life,
        }

    def as_dict(self) -> dict[str, Any]:
        """The form that snapshots hold."""
        return {
            "groups": self.groups,
            "reported": self.reported,
            "attempts": self.attempts,
            "passes": self.passes,
            "reward_sum": self.reward_sum,
            "kinds": {kind: self.kinds[kind] for kind in sorted(self.kinds) if self.kinds[kind]},
            "evidence": self.evidence.as_list(),
        }

    def load(self, data: Mapping[str, Any]) -> None:
        """Take the values of a snapshot. KeyError or TypeError for a broken one."""
        self.groups, self.reported = int(data["groups"]), int(data["reported"])
        self.attempts, self.passes = int(data["attempts"]), int(data["passes"])
        self.reward_sum = float(data["reward_sum"])
        self.kinds = Counter({str(kind): int(count) for kind, count in data["kinds"].items()})
        self.evidence = Decayed(*data["evidence"])


@dataclass
class TaskTotals(Totals):
    """Accumulator of one task."""

    entry: str | None = None
    label: str | None = None
    uniform_streak: int = 0
    no_evidence_streak: int = 0
    outstanding: int = 0
    drawn: int = 0
    fates: Counter[str] = field(default_factory=Counter)
    history: deque[GroupSummary] = field(default_factory=lambda: deque(maxlen=HISTORY))
    means: dict[str, Decayed] = field(default_factory=lambda: {name: Decayed() for name in MEANS})

    def take_in(self, record: GroupRecord, threshold: float, half_life: float) -> None:
        super().take_in(record, threshold, half_life)
        if record.members or record.verdict != "unknown":
            self.uniform_streak = self.uniform_streak + 1 if record.verdict == "uniform" else 0
            self.no_evidence_streak = 0 if record.valid else self.no_evidence_streak + 1
        version = record.oldest_version
        for name, values in _member_values(record.members).items():
            if values and version is not None:
                self.means[name].add(sum(values), len(values), version, half_life)
        self.history.append(_summary(record, threshold))

    def counts(self) -> TaskCounts:
        return TaskCounts(
            self.groups,
            self.outstanding,
            self.drawn,
            self.uniform_streak,
            self.no_evidence_streak,
            self.evidence.version,
        )

    def stats(self, task_id: str, half_life: float) -> TaskStats:
        return TaskStats(
            **self.fields(half_life),
            task_id=task_id,
            entry=self.entry,
            label=self.label,
            uniform_streak=self.uniform_streak,
            no_evidence_streak=self.no_evidence_streak,
            outstanding=self.outstanding,
            drawn=self.drawn,
            fates={fate: self.fates[fate] for fate in FATES},
            history=tuple(self.history),
            means={name: (mean.first, mean.second, mean.version) for name, mean in self.means.items()},
        )

    def as_dict(self) -> dict[str, Any]:
        return {
            "entry": self.entry,
            "label": self.label,
            **super().as_dict(),
            "uniform_streak": self.uniform_streak,
            "no_evidence_streak": self.no_evidence_streak,
            "metrics": {name: self.means[name].as_list() for name in MEANS},
            "history": [list(summary) for summary in self.history],
            "fates": {fate: self.fates[fate] for fate in sorted(self.fates) if self.fates[fate]},
            "drawn": self.drawn,
            "outstanding": self.outstanding,
        }

    def load(self, data: Mapping[str, Any]) -> None:
        super().load(data)
        self.uniform_streak, self.no_evidence_streak = int(data["uniform_streak"]), int(data["no_evidence_streak"])
        self.drawn, self.outstanding = int(data["drawn"]), int(data["outstanding"])
        self.fates = Counter({str(fate): int(count) for fate, count in data["fates"].items()})
        self.history = deque((GroupSummary(*row) for row in data["history"]), maxlen=HISTORY)
        self.means = {name: Decayed(*data["metrics"].get(name, ())) for name in MEANS}


def _member_values(members: Iterable[MemberResult]) -> dict[str, list[float]]:
    """Values of the decayed means: rewards of valid members, the others of every member that has one."""
    found: dict[str, list[float]] = {name: [] for name in MEANS}
    for member in members:
        for name, value in (
            ("steps", member.steps),
            ("output_tokens", member.output_tokens),
            ("seconds", member.seconds),
            ("reward", member.reward if member.valid else None),
        ):
            if value is not None:
                found[name].append(value)
    return found


def _summary(record: GroupRecord, threshold: float) -> GroupSummary:
    values = _member_values(record.members)
    return GroupSummary(
        start=record.start,
        seq=record.seq,
        version=record.oldest_version,
        valid=record.valid,
        passes=record.passes(threshold),
        reward_mean=_mean(values["reward"]),
        verdict=record.verdict,
        steps=_mean(values["steps"]),
        seconds=max(values["seconds"], default=None),
    )


def _mean(values: list[float]) -> float | None:
    return sum(values) / len(values) if values else None
