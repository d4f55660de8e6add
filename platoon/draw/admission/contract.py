"""What an admission rule of your own is written against (experimental).

A rule is a class `Class(setup, options)` with `admit(group, stats)`. It is asked once for each settled group, before a
step takes it, and must be pure: the same group and statistics give the same answer.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, ClassVar, Literal, Protocol

from platoon.draw.view import TaskStatsView
from platoon.extensions.options import OptionSchema
from platoon.stats.schema import EntryInfo, GroupRecord

Level = Literal["run", "entry"]


@dataclass(frozen=True, slots=True)
class Admission:
    """The answer of a rule. `reason`: 1-64 characters, counted in metrics; `admitted` or `rejected` when None."""

    admit: bool
    reason: str | None = None


@dataclass(frozen=True)
class AdmissionSetup:
    """`name`: qualified (`x`, or `x@entry`)."""

    name: str
    level: Level
    entry: str | None
    entries: Mapping[str, EntryInfo]
    batch_size: int
    label_column: str

    def __post_init__(self) -> None:
        object.__setattr__(self, "entries", MappingProxyType(self.entries))


@dataclass(frozen=True)
class AdmissionCheckContext:
    """What `check` sees before the tasks are listed. `entries`: label to its settings, by name."""

    level: Level
    entry: str | None
    entries: Mapping[str, Mapping[str, Any]]
    batch_size: int
    label_column: str
    max_groups_per_step: float
    workflow_gives_verdicts: bool


class GroupAdmission(Protocol):
    """What the gate calls."""

    def admit(self, group: GroupRecord, stats: TaskStatsView) -> Admission | bool:
        """Whether the group may train."""


class AdmissionRule:
    """A rule without options: subclass it and write `admit`."""

    options_schema: ClassVar[OptionSchema] = None

    def __init__(self, setup: AdmissionSetup, options: Any) -> None:
        self.setup = setup
        self.options = options

    def admit(self, group: GroupRecord, stats: TaskStatsView) -> Admission | bool:
        raise NotImplementedError(f"{type(self).__name__} does not say which groups it admits")
