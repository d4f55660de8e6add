"""Records of the dispatcher: draws, what happened to them, and its decisions.

`Drawn` and `Fated` are the audit trail in order; `event()` gives the line of `tasks/events.jsonl`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from platoon.stats.schema import Fate

Key = tuple[int, int]
WaitReason = Literal["permits", "horizon", "labels", "plan", "sampler"]
WAIT_REASONS: tuple[WaitReason, ...] = ("permits", "horizon", "labels", "plan", "sampler")


@dataclass(frozen=True, slots=True)
class Draw:
    """One numbered pick of a task; `key` = (start, seq) names it for good.

    `position` is its place in the run's endless order, `row_index` its row in the pool, `version` the policy version
    when it was drawn. `reissues` names the draw of an earlier start whose group is rolled out again.
    """

    start: int
    seq: int
    position: int
    task_id: str
    row_index: int
    entry: str | None
    label: str | None
    group_size: int
    sampler: str
    reason: str = "order"
    score: float | None = None
    version: int = 0
    reissues: Key | None = None

    @property
    def key(self) -> Key:
        return (self.start, self.seq)


@dataclass(frozen=True, slots=True)
class Drawn:
    """A draw was made (it may still wait to start)."""

    draw: Draw

    def event(self) -> dict[str, Any]:
        draw = self.draw
        line: dict[str, Any] = {
            "event": "draw",
            "start": draw.start,
            "seq": draw.seq,
            "task_id": draw.task_id,
            "position": draw.position,
            "version": draw.version,
            "sampler": draw.sampler,
            "reason": draw.reason,
        }
        if draw.score is not None:
            line["score"] = draw.score
        if draw.reissues is not None:
            line["reissues"] = list(draw.reissues)
        return line


@dataclass(frozen=True, slots=True)
class Fated:
    """What became of a draw. `rule` and its reason `admission`: of a group that an admission rule turned away."""

    key: Key
    fate: Fate
    label: str | None = None
    rule: str | None = None
    admission: str | None = None

    def event(self) -> dict[str, Any]:
        line = {"event": "fate", "start": self.key[0], "seq": self.key[1], "fate": self.fate}
        if self.rule is not None:
            line |= {"rule": self.rule, "admission": self.admission}
        return line


@dataclass(frozen=True, slots=True)
class SlotSkipped:
    """A position owed to an entry is used up without a draw."""

    start: int
    position: int
    entry: str
    why: Literal["backlog", "no_slots", "entry_left"]

    def event(self) -> dict[str, Any]:
        return {
            "event": "slot_skipped",
            "start": self.start,
            "position": self.position,
            "entry": self.entry,
            "why": self.why,
        }


Record = Drawn | Fated | SlotSkipped


@dataclass(frozen=True, slots=True)
class Start:
    """Start this draw's group: reserve its permits, then run it."""

    draw: Draw
    records: tuple[Record, ...] = ()


@dataclass(frozen=True, slots=True)
class Wait:
    """Nothing can start until something changes."""

    reason: WaitReason
    records: tuple[Record, ...] = ()


@dataclass(frozen=True, slots=True)
class Ask:
    """A group can start, and an adaptive sampler is to say which: reserve `size` permits, then `decide`.

    `entry` None: the run's sampler, at the next position.
    """

    size: int
    entry: str | None = None
    records: tuple[Record, ...] = ()


Decision = Start | Ask | Wait
