"""Records of settled groups and their members: what statistics, admission and the tables read.

Plain records: every room may import this module. The Parquet columns that hold them live in `stats/tables.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Literal, Protocol

Verdict = Literal[
    "trained",
    "uniform",
    "reward_key_mismatch",
    "no_results",
    "below_min",
    "no_completed_root",
    "no_datums",
    "failed",
    "unknown",
]
Fate = Literal["consumed", "stale", "failed", "skipped", "lost", "rejected"]
FATES: tuple[Fate, ...] = ("consumed", "stale", "failed", "skipped", "lost", "rejected")


@dataclass(frozen=True)
class MemberResult:
    """One rollout of a group, as statistics see it, read before any datum is filtered.

    `reward`: the trained reward of the root, None without a result. `scored`: the environment's own score, None when
    the outcome is not scored. `valid`: a result whose root finished with a scored outcome. `seconds`: wall time.
    `versions`: policy to (oldest, newest) version its datums were sampled at. `flag`: a success but no outcome.
    """

    reward: float | None
    scored: float | None
    valid: bool
    outcome: str
    disposition: str
    reward_key: str | None = None
    steps: int | None = None
    output_tokens: int | None = None
    seconds: float | None = None
    versions: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    flag: bool = False

    def passes(self, threshold: float) -> bool:
        """Valid, and its score reaches the threshold (1.0 for a bare success flag)."""
        return self.valid and self.scored is not None and self.scored >= (1.0 if self.flag else threshold)


@dataclass(frozen=True)
class GroupRecord:
    """One settled group. `(start, seq)` names its draw; `position` is its place in the run's order."""

    start: int
    seq: int
    task_id: str
    entry: str | None
    labels: Mapping[str, str]
    group_size: int
    sampler: str
    reason: str
    position: int
    drawn_at: Mapping[str, int]
    members: tuple[MemberResult, ...]
    verdict: str
    score: float | None = None
    harness: None = None

    @property
    def valid(self) -> int:
        return sum(m.valid for m in self.members)

    def passes(self, threshold: float) -> int:
        return sum(m.passes(threshold) for m in self.members)

    @property
    def oldest_version(self) -> int | None:
        """The oldest version any member sampled at; the version at the draw when no member has datums."""
        oldest = [low for m in self.members for low, _ in m.versions.values()]
        return min(oldest) if oldest else min(self.drawn_at.values(), default=None)

    def kind(self, threshold: float) -> str | None:
        """`informative`, `all_pass`, `all_fail`, `uniform_mixed`, or None for a verdict about no policy."""
        if self.verdict == "trained":
            return "informative"
        if self.verdict != "uniform":
            return None
        passes, valid = self.passes(threshold), self.valid
        if valid > 0 and passes == valid:
            return "all_pass"
        if valid > 0 and passes == 0:
            return "all_fail"
        return "uniform_mixed"


def json_ready(value: Any) -> Any:
    """Mappings and tuples of these records as plain JSON values."""
    if isinstance(value, Mapping):
        return {str(k): json_ready(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [json_ready(v) for v in value]
    return value


@dataclass(frozen=True)
class EntryInfo:
    """What samplers and statistics know of one environment entry. `task_ids`: its pool, in listing order."""

    group_size: int = 1
    success_threshold: float = 1.0
    name: str = ""
    weight: float = 1.0
    seed: int = 0
    index: int = 0
    task_ids: tuple[str, ...] = ()


@dataclass(frozen=True)
class Workload:
    """What a rollout (or a group, or a step) cost: counts, summed by `+`.

    `input_tokens` counts the full prompt of every recorded call. Datums form a funnel: post_sampling <=
    policy_eligible <= postmerge. ValueError when they do not.
    """

    environment_steps: int = 0
    model_calls: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    trajectories: int = 0
    postmerge_datums: int = 0
    policy_eligible_datums: int = 0
    post_sampling_datums: int = 0

    def __post_init__(self) -> None:
        if not self.post_sampling_datums <= self.policy_eligible_datums <= self.postmerge_datums:
            raise ValueError(
                f"datum counts out of order: {self.post_sampling_datums} sampled, {self.policy_eligible_datums} "
                f"eligible, {self.postmerge_datums} merged"
            )

    def __add__(self, other: Workload) -> Workload:
        return Workload(*(getattr(self, f.name) + getattr(other, f.name) for f in fields(self)))

    def totals(self) -> dict[str, int]:
        """The counts and what follows from them, under the names that metrics use after `total_`."""
        merged, eligible, sampled = self.postmerge_datums, self.policy_eligible_datums, self.post_sampling_datums
        return {
            "environment_steps": self.environment_steps,
            "model_calls": self.model_calls,
            "input_tokens": self.input_tokens,
            "output_tokens": self.output_tokens,
            "tokens": self.input_tokens + self.output_tokens,
            "trajectories": self.trajectories,
            "postmerge_datums": merged,
            "policy_eligible_datums": eligible,
            "post_sampling_datums": sampled,
            "policy_excluded_datums": merged - eligible,
            "sampling_dropped_datums": eligible - sampled,
            "candidate_trainable_datums": sampled,
            "candidate_non_trainable_datums": merged - sampled,
        }


@dataclass(frozen=True)
class RolloutStats:
    """One group's values per rollout or trajectory by statistic; counts (`outcome/<status>`, `reward_key/<key>`)."""

    values: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    counts: Mapping[str, int] = field(default_factory=dict)


class SettledGroup(Protocol):
    """What step metrics read of a group's output, whoever made it."""

    @property
    def verdict(self) -> str: ...
    @property
    def members(self) -> tuple[MemberResult, ...]: ...
    @property
    def workload(self) -> Workload: ...
    @property
    def rollout_workloads(self) -> tuple[Workload, ...]: ...
    @property
    def requested_rollouts(self) -> int: ...
    @property
    def observed_rollouts(self) -> int: ...
    @property
    def trainable_rollouts(self) -> int: ...
    @property
    def task_retained_datums(self) -> int: ...
    @property
    def rollout_stats(self) -> RolloutStats: ...
    @property
    def group_stats(self) -> Mapping[str, float]: ...
    @property
    def label(self) -> str | None: ...
    @property
    def entry(self) -> str | None: ...


def member_from_json(data: Mapping[str, Any]) -> MemberResult:
    """A member as JSON files hold it. KeyError names a missing field."""
    versions = {str(policy): (int(low), int(high)) for policy, (low, high) in data["versions"].items()}
    return MemberResult(**{**data, "versions": versions})


def member_to_json(member: MemberResult) -> dict[str, Any]:
    return {f.name: json_ready(getattr(member, f.name)) for f in fields(member)}


def record_from_json(data: Mapping[str, Any]) -> GroupRecord:
    """A group's record as JSON files hold it (also those of platoon 0.3 and 0.4)."""
    return GroupRecord(**{**data, "members": tuple(member_from_json(m) for m in data["members"])})


def record_to_json(record: GroupRecord) -> dict[str, Any]:
    plain = {f.name: json_ready(getattr(record, f.name)) for f in fields(record) if f.name != "members"}
    return {**plain, "members": [member_to_json(m) for m in record.members]}
