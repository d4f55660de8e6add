"""The static samplers behind one face: `Sampling` binds positions to rows.

Which sampler draws follows `train.task_sampler` and the entries. Static samplers never look at statistics and never
fail. Positions are taken once, in ascending order; decision counts are kept so that a resume goes on after them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from platoon.draw.order import EntryUniform, FairOrder, ListingOrder, RowOrder, RunUniform
from platoon.draw.pool import ENVIRONMENT_COLUMN, TaskPool

CORE_SAMPLERS = ("auto", "weighted", "uniform")


@dataclass(frozen=True)
class EntrySampling:
    """What one `environments:` item says about sampling. `weight`: a number > 0, or `tasks` (its task count)."""

    label: str
    weight: float | Literal["tasks"] = "tasks"
    seed: int = 0
    task_sampler: str | None = None
    task_sampler_options: Mapping[str, Any] = field(default_factory=dict)


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
    def hands_slots(self) -> bool:
        """True when the run's sampler hands slots to entries, so that entry samplers draw the rows."""
        if self.task_sampler == "auto":
            return len(self.entries) != 1 or self.entries[0].task_sampler not in (None, "uniform")
        return self.task_sampler == "weighted"


@dataclass(frozen=True, slots=True)
class Pick:
    """The row that a position drew, and who drew it (a qualified sampler name)."""

    row_index: int
    sampler: str
    reason: str = "order"
    score: float | None = None


class RowSampling:
    """A run-level sampler that draws rows itself."""

    adaptive = False

    def __init__(self, name: str, order: RowOrder) -> None:
        self.name = name
        self._order = order
        self._decisions = 0

    def take(self, position: int) -> Pick:
        """The pick of the next position."""
        self._decisions = position + 1
        return Pick(self._order.row(position), self.name)

    def seek(self, position: int) -> None:
        """Go on at `position`, as if all before it had been taken."""
        self._decisions = position

    def state(self) -> dict[str, Any]:
        """The JSON block `samplers` of a saved dispatcher."""
        return {"run": _record(self.name, self._order, self._decisions), "entries": {}}

    def load_state(self, state: Mapping[str, Any] | None, position: int) -> list[str]:
        """Restore the counts saved at `position`: they follow from it. Gives warnings."""
        self.seek(position)
        return []


class SlotSampling:
    """The weighted run sampler: a fair order hands slots, each entry's own order draws the row."""

    adaptive = False

    def __init__(self, name: str, pool: TaskPool, entries: tuple[EntrySampling, ...]) -> None:
        self.name = name
        self._entries = tuple(entry for entry in entries if entry.label in pool.by_entry)
        if not self._entries:
            raise ValueError("no entry of `environments:` has training tasks")
        for entry in self._entries:
            if entry.task_sampler not in (None, "uniform"):
                raise ValueError(
                    f"environment {entry.label!r}: task_sampler: {entry.task_sampler!r} is not known; use uniform"
                )
        self._rows = [pool.by_entry[entry.label] for entry in self._entries]
        self.fair = FairOrder(
            [entry_weight(entry, len(rows)) for entry, rows in zip(self._entries, self._rows, strict=True)]
        )
        self._orders = [
            EntryUniform(len(rows), entry.seed, index)
            for index, (entry, rows) in enumerate(zip(self._entries, self._rows, strict=True))
        ]
        self._decisions = 0
        self._counts = [0] * len(self._entries)

    def take(self, position: int) -> Pick:
        """The pick of the next position."""
        chosen = self.fair.entry(position)
        decision = self._counts[chosen]
        self._counts[chosen] += 1
        self._decisions = position + 1
        return Pick(self._rows[chosen][self._orders[chosen].row(decision)], self._qualified(chosen))

    def seek(self, position: int) -> None:
        """Go on at `position`, as if all before it had been taken: the fair order is replayed."""
        self._counts = [0] * len(self._entries)
        for slot in range(position):
            self._counts[self.fair.entry(slot)] += 1
        self._decisions = position

    def state(self) -> dict[str, Any]:
        """The JSON block `samplers` of a saved dispatcher."""
        return {
            "run": _record(self.name, self.fair, self._decisions),
            "entries": {
                entry.label: _record(self._qualified(index), self._orders[index], self._counts[index])
                for index, entry in enumerate(self._entries)
            },
        }

    def load_state(self, state: Mapping[str, Any] | None, position: int) -> list[str]:
        """Restore the counts saved at `position`; an entry without a usable record gets its replayed count.

        Gives a warning for each record that does not read.
        """
        self.seek(position)
        saved = state.get("entries", {}) if state else {}
        warnings: list[str] = []
        for index, (label, ours) in enumerate(self.state()["entries"].items()):
            theirs = saved.get(label)
            if not theirs or theirs.get("name") != ours["name"] or theirs.get("class") != ours["class"]:
                continue
            count = theirs.get("decisions")
            if isinstance(count, int) and not isinstance(count, bool) and count >= 0:
                self._counts[index] = count
            else:
                warnings.append(f"saved sampler of environment {label!r}: decisions is {count!r}, not a count")
        return warnings

    def _qualified(self, index: int) -> str:
        entry = self._entries[index]
        return f"{entry.task_sampler or 'uniform'}@{entry.label}"


Sampling = RowSampling | SlotSampling


def build_sampling(settings: SamplingSettings, pool: TaskPool) -> Sampling:
    """The sampler that draws for these settings. ValueError for a name that is not known."""
    name = settings.task_sampler
    if name not in CORE_SAMPLERS:
        raise ValueError(f"train.task_sampler: {name!r} is not known; use one of {', '.join(CORE_SAMPLERS)}")
    if settings.task_sampler_options:
        raise ValueError(f"train.task_sampler_options: sampler {name!r} takes no options; remove them")
    if settings.hands_slots:
        return SlotSampling(name, pool, settings.entries)
    if name == "auto" and settings.listing_ordered:
        return RowSampling(name, ListingOrder(len(pool), settings.batch_size))
    return RowSampling(name, RunUniform(len(pool)))


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


def _record(name: str, order: object, decisions: int) -> dict[str, Any]:
    kind = type(order)
    return {"name": name, "class": f"{kind.__module__}:{kind.__qualname__}", "decisions": decisions}
