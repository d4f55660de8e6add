"""What a sampler of your own is written against (experimental).

A sampler is a class `Class(setup, options)` with `next(ctx)`, `state_dict()`, `load_state_dict(state)` and the class
attribute `adaptive`. A static one is asked when a position is drawn; an adaptive one only when a group can start, and
sees the statistics.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from types import MappingProxyType
from typing import Any, ClassVar, Literal, Protocol

import numpy as np
import numpy.typing as npt

from platoon.draw.view import TaskStatsView
from platoon.extensions.options import OptionSchema as Schema
from platoon.stats.schema import EntryInfo

Level = Literal["run", "entry"]


@dataclass(frozen=True, slots=True)
class Draw:
    """Draw this task. `reason`: 1-64 characters, counted in metrics; `score`: a finite number or None."""

    task_id: str
    reason: str = "order"
    score: float | None = None


@dataclass(frozen=True, slots=True)
class Slot:
    """Let this entry's own sampler draw. Only a static sampler of the run with `entry_slots` may say so."""

    entry: str


@dataclass(frozen=True)
class SamplerSetup:
    """`name`: qualified (`x`, or `x@entry`). `task_ids`: its pool in listing order, repeats kept."""

    name: str
    level: Level
    entry: str | None
    task_ids: tuple[str, ...]
    entries: Mapping[str, EntryInfo]
    batch_size: int
    label_column: str
    seed: int = 0

    def __post_init__(self) -> None:
        object.__setattr__(self, "entries", MappingProxyType(self.entries))


@dataclass(frozen=True)
class SamplerContext:
    """One decision. `key` seeds whatever is random in it; `stats` is None for a static sampler.

    `eligible(task_id)`: whether the task's group could start now. `eligible_N`: the same over the distinct ids of the
    pool in listing order, None when all are.
    """

    task_ids: tuple[str, ...]
    entry: str | None
    decision: int
    key: int
    eligible: Callable[[str], bool]
    stats: TaskStatsView | None
    step: int
    versions: Mapping[str, int]
    eligible_N: npt.NDArray[np.bool_] | None = None

    @cached_property
    def rng(self) -> random.Random:
        return random.Random(self.key)


@dataclass(frozen=True)
class SamplerCheckContext:
    """What `check` sees before the tasks are listed. `entries`: label to its settings, by name."""

    level: Level
    entry: str | None
    run_sampler: str
    entries: Mapping[str, Mapping[str, Any]]
    batch_size: int
    label_column: str


class TaskSampler(Protocol):
    """What the dispatcher calls. Optional: `metrics(view)`, and for an adaptive one `observe(record)`, which hears of
    each settled group of its pool, in draw order.
    """

    adaptive: ClassVar[bool]

    def next(self, ctx: SamplerContext) -> Draw | Slot | str | None:
        """The task to draw (an id, or a `Draw`); None when nothing is eligible."""

    def state_dict(self) -> Mapping[str, Any]:
        """What a resume needs, as JSON values."""

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take a saved state; ValueError when it does not read."""


class Sampler:
    """A sampler without state: subclass it and write `next`."""

    adaptive: ClassVar[bool] = False
    entry_slots: ClassVar[bool] = False
    options_schema: ClassVar[Schema] = None

    def __init__(self, setup: SamplerSetup, options: Any) -> None:
        self.setup = setup
        self.options = options

    def next(self, ctx: SamplerContext) -> Draw | Slot | str | None:
        raise NotImplementedError(f"{type(self).__name__} does not say which task is next")

    def state_dict(self) -> Mapping[str, Any]:
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        if state:
            raise ValueError(f"{type(self).__name__} has no state, and the saved one holds {', '.join(state)}")

    def metrics(self, stats: TaskStatsView | None) -> Mapping[str, float]:
        return {}
