"""Records of settled groups and their members: what statistics, admission and the tables read.

Plain records: every room may import this module. The Parquet columns that hold them live in `stats/tables.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

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
    `versions`: policy to (oldest, newest) version its datums were sampled at. `flag`: a success value without an outcome.
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
        """`informative`, `all_pass`, `all_fail`, `uniform_mixed`, or None for a verdict that says nothing of the policy."""
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
