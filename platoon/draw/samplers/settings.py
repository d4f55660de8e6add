"""What a config says about sampling, and the sizes that follow from it.

Plain records. Names are looked up only where a sampler of one's own decides whether slots are handed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from platoon.draw.pool import ENVIRONMENT_COLUMN
from platoon.draw.samplers.registry import SAMPLERS

PLAIN_SAMPLERS = ("auto", "weighted", "uniform")  # of the run, without options


@dataclass(frozen=True)
class EntrySampling:
    """What one `environments:` item says about sampling. `weight`: a number > 0, or `tasks` (its task count)."""

    label: str
    weight: float | Literal["tasks"] = "tasks"
    seed: int = 0
    task_sampler: str | None = None
    task_sampler_options: Mapping[str, Any] = field(default_factory=dict)
    group_size: int = 2
    success_threshold: float = 1.0

    @property
    def plain(self) -> bool:
        """Drawn in shuffled passes."""
        return self.task_sampler in (None, "uniform")


@dataclass(frozen=True)
class SamplingSettings:
    """What a run says about sampling. `listing_ordered`: the single environment's listing order is to be kept."""

    batch_size: int
    entries: tuple[EntrySampling, ...]
    task_sampler: str = "auto"
    task_sampler_options: Mapping[str, Any] = field(default_factory=dict)
    label_by: str = ENVIRONMENT_COLUMN
    listing_ordered: bool = False

    @property
    def described(self) -> dict[str, dict[str, Any]]:
        """What checks of samplers and rules see of each entry."""
        return {entry.label: {key: vars(entry)[key] for key in vars(entry) if key != "label"} for entry in self.entries}

    @property
    def hands_slots(self) -> bool:
        """True when the run's sampler hands slots to entries, so that entry samplers draw the rows."""
        if self.task_sampler == "auto":
            return len(self.entries) != 1 or not self.entries[0].plain
        if self.task_sampler in SAMPLERS.core:
            return self.task_sampler == "weighted"
        return bool(getattr(SAMPLERS.resolve(self.task_sampler).cls, "entry_slots", False))


def epoch_size(settings: SamplingSettings, tasks: int) -> int:
    """Rows of one epoch: whole batches, rounded down for one plainly sampled environment, else up."""
    batches = tasks // settings.batch_size
    rounds_down = settings.task_sampler == "auto" and not settings.hands_slots
    if not rounds_down and tasks % settings.batch_size:
        batches += 1
    return batches * settings.batch_size


def entry_weight(entry: EntrySampling, tasks: int) -> float:
    """An entry's weight as a number."""
    return float(tasks) if entry.weight == "tasks" else float(entry.weight)
