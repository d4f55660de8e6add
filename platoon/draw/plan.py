"""The sampling plan: what a run will draw, as lines to log and warnings about shares that do not fit.

Pure: settings and a pool in, text out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from platoon.draw.pool import TaskPool
from platoon.draw.samplers.registry import SAMPLERS
from platoon.draw.samplers.settings import PLAIN_SAMPLERS, SamplingSettings, entry_weight, epoch_size

UNEVEN = 4.0  # draws per task of the most and the least drawn entry may differ by this factor


@dataclass(frozen=True)
class Duration:
    """How long a run trains; both given means the smaller step count."""

    num_epochs: int | None = None
    max_training_steps: int | None = None


@dataclass(frozen=True)
class EntryPlan:
    """One entry's part. `draws_per_task` over the run, or over an epoch when the length is unknown."""

    label: str
    tasks: int
    weight: float | str
    share: float
    draws_per_task: float
    sampler: str | None = None


@dataclass(frozen=True)
class SamplingPlan:
    """`steps` None: the run's length is unknown. `epoch_size` in rows."""

    sampler: str
    tasks: int
    batch_size: int
    epoch_size: int
    steps: int | None
    entries: tuple[EntryPlan, ...]

    @property
    def batches(self) -> int:
        """Steps of one epoch."""
        return self.epoch_size // self.batch_size

    @property
    def slots(self) -> int | None:
        """Draws the whole run trains; None when its length is unknown."""
        return None if self.steps is None else self.steps * self.batch_size


def sampling_plan(settings: SamplingSettings, pool: TaskPool, duration: Duration) -> SamplingPlan:
    """What these settings draw from this pool. Entries without tasks have no part."""
    epoch = epoch_size(settings, len(pool))
    steps = planned_steps(epoch // settings.batch_size, duration)
    slots = epoch if steps is None else steps * settings.batch_size
    sizes = {entry.label: len(pool.by_entry.get(entry.label, ())) for entry in settings.entries}
    present = [entry for entry in settings.entries if sizes[entry.label]]
    weights = {
        entry.label: entry_weight(entry, sizes[entry.label]) if settings.hands_slots else float(sizes[entry.label])
        for entry in present
    }
    total = sum(weights.values())
    entries = tuple(
        EntryPlan(
            label=entry.label,
            tasks=sizes[entry.label],
            weight=entry.weight,
            share=weights[entry.label] / total,
            draws_per_task=weights[entry.label] / total * slots / sizes[entry.label],
            sampler=entry.task_sampler if entry.task_sampler != "uniform" else None,
        )
        for entry in present
    )
    return SamplingPlan(settings.task_sampler, len(pool), settings.batch_size, epoch, steps, entries)


def planned_steps(batches_per_epoch: int, duration: Duration) -> int | None:
    """Steps the run trains; None when neither epochs nor steps are given."""
    known: list[int] = []
    if duration.num_epochs is not None:
        known.append(duration.num_epochs * batches_per_epoch)
    if duration.max_training_steps is not None:
        known.append(duration.max_training_steps)
    return min(known, default=None)


def plan_lines(plan: SamplingPlan, notes: Sequence[str] = ()) -> list[str]:
    """The plan for the log and for `config validate --tasks`; `notes` are lines of other parts, put last."""
    steps = "steps unknown" if plan.steps is None else f"{plan.steps} steps"
    lines = [
        f"sampling: {plan.tasks} tasks, epoch of {plan.epoch_size} draws ({plan.batches} batches of "
        f"{plan.batch_size}), {steps}, sampler {_named(plan.sampler)}"
    ]
    span = "epoch" if plan.steps is None else "run"
    for entry in plan.entries:
        line = (
            f"  {entry.label}: {entry.tasks} tasks, weight {entry.weight}, share {entry.share:.1%}, "
            f"{entry.draws_per_task:.2f} draws per task over the {span}"
        )
        lines.append(f"{line}, sampler {_named(entry.sampler)}" if entry.sampler else line)
    return [*lines, *notes]


def _named(sampler: str) -> str:
    if sampler in PLAIN_SAMPLERS:
        return sampler
    adaptive = getattr(SAMPLERS.resolve(sampler).cls, "adaptive", False)
    return f"{sampler} (adaptive, experimental)" if adaptive else sampler


def plan_warnings(plan: SamplingPlan) -> list[str]:
    """Shares that leave tasks untrained, or repeat some entry's tasks far more often than another's."""
    if len(plan.entries) < 2:
        return []
    warnings: list[str] = []
    slots = plan.slots
    if slots is not None and slots >= plan.tasks:
        for entry in plan.entries:
            if entry.share * slots < entry.tasks:
                drawn = int(entry.share * slots)
                warnings.append(
                    f"environment {entry.label!r}: its share of {entry.share:.1%} draws about {drawn} of its "
                    f"{entry.tasks} tasks; the others never train. Raise its weight, or use weight: tasks"
                )
    rates = {entry.label: entry.share / entry.tasks for entry in plan.entries}
    most, least = max(rates, key=rates.__getitem__), min(rates, key=rates.__getitem__)
    if rates[most] / rates[least] > UNEVEN:
        warnings.append(
            f"tasks of environment {most!r} repeat {rates[most] / rates[least]:.1f} times as often as those of "
            f"{least!r}; weight: tasks draws all tasks equally often"
        )
    return warnings
