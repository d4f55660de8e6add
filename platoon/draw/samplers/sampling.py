"""What draws for a run: the run's sampler, and below one that hands slots, each entry's.

`take` binds the next position to a row, or owes it to an adaptive entry; `ask` lets an adaptive sampler decide.
Static orders of platoon's own never fail and follow from a position; samplers of one's own run in `HostedSampler`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from platoon.config import ConfigError
from platoon.draw.order import EntryUniform, FairOrder, ListingOrder, RowOrder, RunUniform
from platoon.draw.pool import TaskPool
from platoon.draw.samplers.contract import Draw, SamplerSetup, Slot
from platoon.draw.samplers.hosted import FALLBACK, OPEN, HostedSampler, Scene
from platoon.draw.samplers.registry import SAMPLERS
from platoon.draw.samplers.settings import PLAIN_SAMPLERS, EntrySampling, SamplingSettings, entry_weight
from platoon.draw.view import TaskStatsView
from platoon.stats.schema import EntryInfo, GroupRecord


@dataclass(frozen=True, slots=True)
class Pick:
    """The row that a position drew, and who drew it (a qualified sampler name)."""

    row_index: int
    sampler: str
    reason: str = "order"
    score: float | None = None


@dataclass(frozen=True, slots=True)
class Owed:
    """The position goes to an entry whose adaptive sampler decides when a group of it can start."""

    entry: str
    fallback: bool = False


class OrderedRows:
    """A static order of platoon's own over some rows of the pool."""

    adaptive = False

    def __init__(self, name: str, order: RowOrder, rows: tuple[int, ...] | None = None) -> None:
        self.name = name
        self.decisions = 0
        self._order, self._rows = order, rows

    def row(self, decision: int) -> int:
        place = self._order.row(decision)
        return place if self._rows is None else self._rows[place]

    def record(self) -> dict[str, Any]:
        return _record(self.name, self._order, self.decisions)


class FairSlots:
    """The weighted run sampler: slots by share."""

    adaptive = False

    def __init__(self, name: str, entries: tuple[str, ...], fair: FairOrder) -> None:
        self.name = name
        self.decisions = 0
        self.entries, self.fair = entries, fair

    def entry(self, slot: int) -> str:
        return self.entries[self.fair.entry(slot)]

    def record(self) -> dict[str, Any]:
        return _record(self.name, self.fair, self.decisions)


RunSampler = OrderedRows | FairSlots | HostedSampler
EntrySampler = OrderedRows | HostedSampler


class Sampling:
    """The samplers of one start. Positions are taken once, in ascending order."""

    def __init__(
        self,
        run: RunSampler,
        entries: Mapping[str, EntrySampler],
        twin: Callable[[], HostedSampler] | None = None,
        stats: TaskStatsView | None = None,
    ) -> None:
        self.run, self.entries = run, dict(entries)
        self._twin, self._stats = twin, stats

    @property
    def name(self) -> str:
        return self.run.name

    @property
    def adaptive(self) -> bool:
        """The run's own sampler decides when a group can start."""
        return self.run.adaptive

    # -- drawing

    def take(self, position: int, scene: Scene = OPEN) -> Pick | Owed:
        """What the next position draws."""
        run = self.run
        run.decisions = position + 1
        if isinstance(run, OrderedRows):
            return Pick(run.row(position), run.name)
        if isinstance(run, FairSlots):
            return self._of_entry(run.entry(position), scene)
        answer = run.decide(position, scene, None)
        assert answer is not None, "a static sampler always draws"
        if isinstance(answer, Slot):
            return self._of_entry(answer.entry, scene, fallback=run.fell_back)
        return _pick(answer, run.name)

    def _of_entry(self, label: str, scene: Scene, *, fallback: bool = False) -> Pick | Owed:
        sampler = self.entries[label]
        if sampler.adaptive:
            return Owed(label, fallback)
        decision = sampler.decisions
        sampler.decisions += 1
        if isinstance(sampler, OrderedRows):
            pick = Pick(sampler.row(decision), sampler.name)
        else:
            answer = sampler.decide(decision, scene, None)
            assert isinstance(answer, tuple), "a static sampler of an entry draws a row"
            pick = _pick(answer, sampler.name)
        return Pick(pick.row_index, self.run.name, FALLBACK) if fallback else pick

    def ask(self, entry: str | None, scene: Scene, *, fallback: bool = False) -> Pick | None:
        """Let the adaptive sampler of the run (None) or of an entry decide; None when nothing may start.

        `fallback`: the slot came from a run sampler that failed, to which the draw is then attributed.
        """
        sampler = self.run if entry is None else self.entries[entry]
        assert isinstance(sampler, HostedSampler)
        answer = sampler.decide(sampler.decisions, scene, self._stats)
        if answer is None:
            return None
        assert isinstance(answer, tuple), "an adaptive sampler hands no slots"
        sampler.decisions += 1
        pick = _pick(answer, sampler.name)
        return Pick(pick.row_index, self.run.name, FALLBACK) if fallback else pick

    def bind(self, entry: str, fallback: bool) -> Pick | None:
        """Draw a saved slot of an entry whose sampler is static now; None when the entry has none."""
        sampler = self.entries.get(entry)
        if sampler is None or sampler.adaptive:
            return None
        found = self._of_entry(entry, OPEN, fallback=fallback)
        return found if isinstance(found, Pick) else None

    def observe(self, record: GroupRecord) -> None:
        """A settled group, in draw order."""
        for sampler in (self.run, *self.entries.values()):
            if isinstance(sampler, HostedSampler):
                sampler.observe(record)

    def metrics(self) -> dict[str, float]:
        """The samplers' own numbers: under `sampler/`, and `sampler/environment/<entry>/`."""
        found: dict[str, float] = {}
        places = [("sampler/", self.run), *((f"sampler/environment/{e}/", s) for e, s in self.entries.items())]
        for place, sampler in places:
            if isinstance(sampler, HostedSampler):
                found |= {place + key: value for key, value in sampler.metrics(self._stats).items()}
        return found

    # -- saving and going on

    def state(self) -> dict[str, Any]:
        """The JSON block `samplers` of a saved dispatcher."""
        return {"run": self.run.record(), "entries": {label: one.record() for label, one in self.entries.items()}}

    def seek(self, position: int) -> None:
        """Go on at `position`, as if all before it had been taken. Adaptive samplers begin at decision 0."""
        if not self.run.adaptive:
            self.run.decisions = position
        slots = self._slots_before(position)
        for label, sampler in self.entries.items():
            if not sampler.adaptive:
                sampler.decisions = slots.get(label, 0)

    def load_state(self, state: Mapping[str, Any] | None, position: int) -> list[str]:
        """Restore what was saved at `position`: of samplers with the same name and class. Gives warnings."""
        self.seek(position)
        saved = state or {}
        warnings = self._load(self.run, saved.get("run"), position)
        records = saved.get("entries")
        for label, sampler in self.entries.items():
            found = records.get(label) if isinstance(records, Mapping) else None
            warnings += self._load(sampler, found, None)
        return warnings

    def _load(self, sampler: RunSampler, record: object, position: int | None) -> list[str]:
        if not isinstance(record, Mapping) or not _same(sampler, record):
            return []
        replayed = sampler.decisions
        if isinstance(sampler, HostedSampler):
            warnings = sampler.load(record)
        else:
            count = record.get("decisions")
            good = isinstance(count, int) and not isinstance(count, bool) and count >= 0
            warnings = [] if good else [f"saved sampler {sampler.name}: decisions is {count!r}, not a count"]
            sampler.decisions = count if isinstance(count, int) and good else replayed
        if position is not None and not sampler.adaptive:
            sampler.decisions = position
        return warnings

    def _slots_before(self, position: int) -> dict[str, int]:
        """How many slots each entry had before `position`: the run's sampler, replayed."""
        counts: dict[str, int] = {}
        if isinstance(self.run, FairSlots):
            for slot in range(position):
                label = self.run.entry(slot)
                counts[label] = counts.get(label, 0) + 1
        elif self._twin is not None and not all(sampler.adaptive for sampler in self.entries.values()):
            twin = self._twin()
            for slot in range(position):
                answer = twin.decide(slot, OPEN, None)
                if isinstance(answer, Slot):
                    counts[answer.entry] = counts.get(answer.entry, 0) + 1
        return counts


def build_sampling(settings: SamplingSettings, pool: TaskPool, stats: TaskStatsView | None = None) -> Sampling:
    """The samplers that draw for these settings. ConfigError for an entry sampler or options that do not do."""
    name = settings.task_sampler
    if settings.hands_slots:
        present = tuple(entry for entry in settings.entries if entry.label in pool.by_entry)
        if not present:
            raise ConfigError("no entry of `environments:` has training tasks")
        entries = {entry.label: _entry_sampler(settings, pool, entry, index) for index, entry in enumerate(present)}
        if name in PLAIN_SAMPLERS:
            weights = [entry_weight(entry, len(pool.by_entry[entry.label])) for entry in present]
            return Sampling(FairSlots(name, tuple(entries), FairOrder(weights)), entries, None, stats)
        return Sampling(_hosted(settings, pool), entries, lambda: _hosted(settings, pool), stats)
    if name not in PLAIN_SAMPLERS:
        return Sampling(_hosted(settings, pool), {}, None, stats)
    if name == "auto" and settings.listing_ordered:
        return Sampling(OrderedRows(name, ListingOrder(len(pool), settings.batch_size)), {}, None, stats)
    return Sampling(OrderedRows(name, RunUniform(len(pool))), {}, None, stats)


def _entry_sampler(settings: SamplingSettings, pool: TaskPool, entry: EntrySampling, index: int) -> EntrySampler:
    rows = pool.by_entry[entry.label]
    if entry.plain:
        return OrderedRows(f"uniform@{entry.label}", EntryUniform(len(rows), entry.seed, index), rows)
    return _hosted(settings, pool, entry)


def _hosted(settings: SamplingSettings, pool: TaskPool, entry: EntrySampling | None = None) -> HostedSampler:
    name = settings.task_sampler if entry is None else entry.task_sampler or "uniform"
    options = settings.task_sampler_options if entry is None else entry.task_sampler_options
    rows = range(len(pool)) if entry is None else pool.by_entry[entry.label]
    setup = SamplerSetup(
        name=name if entry is None else f"{name}@{entry.label}",
        level="run" if entry is None else "entry",
        entry=None if entry is None else entry.label,
        task_ids=tuple(pool[row].task_id for row in rows),
        entries=entry_infos(settings, pool),
        batch_size=settings.batch_size,
        label_column=settings.label_by,
        seed=0 if entry is None else entry.seed,
    )
    return HostedSampler(SAMPLERS.resolve(name), options, setup, tuple(rows), pool)


def entry_infos(settings: SamplingSettings, pool: TaskPool) -> dict[str, EntryInfo]:
    """What samplers know of the entries."""
    return {
        entry.label: EntryInfo(
            group_size=entry.group_size,
            success_threshold=entry.success_threshold,
            name=entry.label,
            weight=entry_weight(entry, len(pool.by_entry.get(entry.label, ()))),
            seed=entry.seed,
            index=index,
            task_ids=tuple(pool.task_ids(entry.label)),
        )
        for index, entry in enumerate(settings.entries)
    }


def _pick(answer: tuple[int, Draw], sampler: str) -> Pick:
    row, draw = answer
    return Pick(row, sampler, draw.reason, None if draw.score is None else float(draw.score))


def _same(sampler: RunSampler, record: Mapping[str, Any]) -> bool:
    """The record is of this sampler. A core name stands for platoon's own class in every release."""
    if record.get("name") != sampler.name:
        return False
    core = sampler.name.partition("@")[0] in SAMPLERS.core
    return core or record.get("class") == sampler.record()["class"]


def _record(name: str, order: object, decisions: int) -> dict[str, Any]:
    kind = type(order)
    return {"name": name, "class": f"{kind.__module__}:{kind.__qualname__}", "decisions": decisions}
