"""The dispatcher against a slow model of its rules, under random durations, failures, stops and restarts."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from platoon.draw.dispatcher import Dispatcher, DispatchSettings
from platoon.draw.permits import PermitPool, Reservation
from platoon.draw.pool import PoolRow, TaskPool
from platoon.draw.records import Draw, Drawn, Fated, Key, Record, Start, Wait
from platoon.draw.samplers.sampling import Pick, build_sampling
from platoon.draw.samplers.settings import EntrySampling, SamplingSettings
from platoon.stats.schema import Fate

SIZES = {"a": 1, "b": 3, "c": 2}
POOL = TaskPool(
    [PoolRow(f"{name}{i}", name, name) for name, count in (("a", 5), ("b", 3), ("c", 2)) for i in range(count)]
)
PERMITS = 4


@dataclass
class Item:
    """A position in use: parked, running, settled or taken. `order`: who is parked first, or who settled first."""

    position: int
    label: str | None
    where: str
    order: float


class SlowModel:
    """The rules as sentences over a flat list of items, recomputed on every question."""

    def __init__(self, picks: list[Pick], bounds: DispatchSettings, steps: int) -> None:
        self.picks, self.bounds, self.steps = picks, bounds, steps
        self.items: list[Item] = []
        self.position = 0
        self.trained = 0
        self.skipped: list[int] = []
        self.counter = 0.0

    def tick(self) -> float:
        self.counter += 1
        return self.counter

    def at(self, position: int) -> Item:
        return next(item for item in self.items if item.position == position)

    def those(self, *where: str) -> list[Item]:
        return sorted((item for item in self.items if item.where in where), key=lambda item: item.order)

    def active(self, label: str | None) -> int:
        return sum(item.label == label for item in self.those("running"))

    def in_use(self) -> int:
        return len(self.those("running", "settled", "taken")) + self.trained

    def full(self, label: str | None) -> bool:
        return label is not None and self.active(label) >= self.bounds.limits.get(label, 10**6)

    def room(self, waiting_for: str | None = None) -> bool:
        size, ahead = self.bounds.batch_size, self.bounds.max_staleness
        if self.in_use() >= self.steps * size:
            return False
        if ahead is None:
            return True
        parked = {item.label for item in self.those("parked")}
        run = sum(self.active(label) for label in parked if label in self.bounds.limits)
        held = min(run, max(0, ahead * size - run)) if ahead else 0
        if waiting_for in self.bounds.limits:
            held -= min(self.active(waiting_for), held)
        return self.in_use() + held < (ahead + 1) * size

    def choose(self) -> int | str:
        """The position that starts, or the reason to wait."""
        heads: dict[str | None, Item] = {}
        for item in self.those("parked"):
            heads.setdefault(item.label, item)
        for item in sorted(heads.values(), key=lambda item: item.order):
            if not self.full(item.label) and self.room(item.label):
                item.where = "running"
                return item.position
        while self.room() and not all(self.full(label) for label in SIZES):
            label = POOL[self.picks[self.position].row_index].label
            item = Item(self.position, label, "parked", self.tick())
            self.position += 1
            if not self.full(label):
                item.where = "running"
                self.items.append(item)
                return item.position
            if sum(other.label == label for other in self.those("parked")) < self.bounds.backlog_limit:
                self.items.append(item)
            else:
                self.skipped.append(item.position)
        if self.in_use() >= self.steps * self.bounds.batch_size:
            return "plan"
        return "labels" if self.room() else "horizon"

    def restart(self, kept: Iterable[int]) -> None:
        """Running and unread groups are drawn again, oldest draw first, before the parked ones."""
        stay = set(kept)
        for item in self.those("taken", "settled"):
            if item.position in stay:
                item.where = "settled"
        again = [item for item in self.items if item.where != "settled" or item.position not in stay]
        for item in sorted(again, key=lambda item: (item.where == "parked", item.order)):
            item.where, item.order = "parked", self.tick()
        self.trained = 0


class DispatchMachine(RuleBasedStateMachine):
    @initialize(
        batch_size=st.integers(1, 4),
        ahead=st.sampled_from([None, 0, 1, 2, 3]),
        limits=st.dictionaries(st.sampled_from(["a", "b", "c"]), st.integers(1, 2), max_size=3),
        backlog=st.sampled_from([None, 1, 2]),
        weighted=st.booleans(),
        rolling=st.booleans(),
        steps=st.integers(1, 8),
    )
    def begin(
        self,
        batch_size: int,
        ahead: int | None,
        limits: dict[str, int],
        backlog: int | None,
        weighted: bool,
        rolling: bool,
        steps: int,
    ) -> None:
        self.bounds = DispatchSettings(batch_size, 1, ahead, SIZES, limits, backlog)
        entries = tuple(EntrySampling(name, weight) for name, weight in (("a", 1.0), ("b", 3.0), ("c", 2.0)))
        self.run = SamplingSettings(batch_size, entries, task_sampler="weighted" if weighted else "uniform")
        fresh = build_sampling(self.run, POOL)
        self.start, self.version = 1, 0
        self.dispatcher = Dispatcher(POOL, build_sampling(self.run, POOL), self.bounds, start=1, steps_left=steps)
        self.model = SlowModel(
            [pick for at in range(600) if isinstance(pick := fresh.take(at), Pick)], self.bounds, steps
        )
        self.permits = PermitPool(PERMITS)
        self.running: dict[Key, tuple[Draw, Reservation]] = {}
        self.pending: tuple[Draw, Reservation] | None = None
        self.queue: list[Draw] = []
        self.taken: list[Draw] = []
        self.fates: dict[int, Fate] = {}
        self.owner: dict[Key, int] = {}
        self.done = 0
        self.steps = steps
        self.rolling = rolling

    # -- what happens to a run

    @rule()
    def dispatch(self) -> None:
        """Decide until nothing can start, as the driver does: one group waits for permits at a time."""
        while self.pending is None or self.pending[1].startable:
            if self.pending is not None:
                self.running[self.pending[0].key] = self.pending
                self.pending = None
            decision = self.dispatcher.choose()
            self.note(decision.records)
            expected = self.model.choose()
            self.agree_on_skips()
            if isinstance(decision, Wait):
                assert decision.reason == expected
                return
            assert isinstance(decision, Start)
            draw = decision.draw
            assert draw.position == expected
            assert draw.group_size == SIZES[draw.entry or ""]
            self.pending = (draw, self.permits.reserve(draw.group_size, rolling=self.rolling))

    @precondition(lambda self: self.running)
    @rule(data=st.data())
    def a_rollout_ends(self, data: st.DataObject) -> None:
        _, reservation = self.running[data.draw(st.sampled_from(sorted(self.running)))]
        if reservation.held > 1:
            reservation.give_back(1)

    @precondition(lambda self: self.running)
    @rule(data=st.data())
    def a_group_ends(self, data: st.DataObject) -> None:
        draw, reservation = self.running.pop(data.draw(st.sampled_from(sorted(self.running))))
        reservation.close()
        self.dispatcher.released(draw.key)
        self.dispatcher.settled(draw.key)
        item = self.model.at(draw.position)
        item.where, item.order = "settled", self.model.tick()
        self.queue.append(draw)

    @precondition(lambda self: self.queue and not self.model.trained and len(self.taken) < self.bounds.batch_size)
    @rule()
    def the_step_takes_a_group(self) -> None:
        draw = self.queue.pop(0)
        self.dispatcher.dequeued(draw.key)
        self.model.at(draw.position).where = "taken"
        self.taken.append(draw)

    @precondition(lambda self: len(self.taken) == self.bounds.batch_size)
    @rule(fate=st.sampled_from(["consumed", "stale", "failed"]))
    def the_step_commits(self, fate: Fate) -> None:
        records = self.dispatcher.commit({draw.key: fate for draw in self.taken})
        self.note(records)
        for draw in self.taken:
            self.model.items.remove(self.model.at(draw.position))
        self.model.trained = len(self.taken)
        self.taken = []
        self.done += 1

    @precondition(lambda self: self.model.trained)
    @rule()
    def the_next_step_begins(self) -> None:
        self.dispatcher.step_started()
        self.model.trained, self.model.steps = 0, self.model.steps - 1

    @precondition(lambda self: self.pending is not None)
    @rule()
    def a_stop_puts_the_pending_draw_back(self) -> None:
        assert self.pending is not None
        draw, reservation = self.pending
        reservation.close()
        self.dispatcher.put_back(draw.key)
        item = self.model.at(draw.position)
        item.where = "parked"
        self.pending = None

    @rule(lost=st.frozensets(st.integers(0, 7), max_size=2))
    def restart(self, lost: frozenset[int]) -> None:
        """Kill the run and go on from its state; some kept groups do not read back."""
        state = json.loads(json.dumps(self.dispatcher.state(), allow_nan=False))
        settled = [*self.taken, *self.queue]
        kept = [draw for index, draw in enumerate(settled) if index not in lost]
        self.start += 1
        self.model.steps = self.steps - self.done
        twins = [
            Dispatcher(POOL, build_sampling(self.run, POOL), self.bounds, start=self.start, steps_left=self.model.steps)
            for _ in range(2)
        ]
        restored = [twin.load_state(state, [draw.key for draw in kept]) for twin in twins]
        assert twins[0].state() == twins[1].state()
        assert restored[0].kept == tuple(draw.key for draw in kept)
        assert not restored[0].warnings
        self.dispatcher = twins[0]
        self.owner = {key: position for key, position in self.owner.items() if key in set(restored[0].kept)}
        self.note(restored[0].records)
        self.rank_by_draw(state, [draw.position for draw in kept])
        self.model.restart(draw.position for draw in kept)
        self.permits, self.running, self.pending = PermitPool(PERMITS), {}, None
        self.queue, self.taken = kept, []

    def rank_by_draw(self, state: dict[str, object], kept: list[int]) -> None:
        """A restart orders by the time of the draw, which the model reads from the saved list; kept groups stay."""
        outstanding = state["outstanding"]
        assert isinstance(outstanding, list)
        seqs = {position: (start, seq) for start, seq, _, position in outstanding}
        order = {position: rank for rank, position in enumerate(sorted(seqs, key=seqs.__getitem__))}
        settle = {position: rank for rank, position in enumerate(kept)}
        for item in self.model.items:
            item.order = settle.get(item.position, order[item.position])

    # -- what must always hold

    def note(self, records: Iterable[Record]) -> None:
        for record in records:
            if isinstance(record, Drawn):
                assert record.draw.key not in self.owner
                self.owner[record.draw.key] = record.draw.position
            elif isinstance(record, Fated):
                position = self.owner.pop(record.key)
                assert position not in self.fates
                self.fates[position] = record.fate

    def agree_on_skips(self) -> None:
        assert [position for position, fate in self.fates.items() if fate == "skipped"] == self.model.skipped

    @invariant()
    def every_position_is_owed_or_has_one_fate(self) -> None:
        if hasattr(self, "dispatcher"):
            owed = sorted(self.owner.values())
            assert sorted([*owed, *self.fates]) == list(range(self.dispatcher.next_position))
            assert owed == sorted(item.position for item in self.model.items)

    @invariant()
    def bounds_hold(self) -> None:
        if not hasattr(self, "dispatcher"):
            return
        groups = [*self.running.values(), *([self.pending] if self.pending else [])]
        assert sum(reservation.held for _, reservation in groups) == self.permits.in_use <= PERMITS
        assert self.dispatcher.in_use == self.model.in_use() <= max(self.model.steps, 0) * self.bounds.batch_size
        if (horizon := self.bounds.horizon) is not None:
            assert self.dispatcher.in_use <= horizon
        for label, limit in self.bounds.limits.items():
            assert self.dispatcher.active().get(label, 0) == self.model.active(label) <= limit

    def teardown(self) -> None:
        """Whatever happened, the run can be finished."""
        if not hasattr(self, "dispatcher"):
            return
        if self.model.trained:
            self.the_next_step_begins()
        while self.done < self.steps:
            self.dispatch()
            while self.running:
                draw, reservation = self.running.pop(min(self.running))
                reservation.close()
                self.dispatcher.settled(draw.key)
                item = self.model.at(draw.position)
                item.where, item.order = "settled", self.model.tick()
                self.queue.append(draw)
                self.dispatch()
            while self.queue and len(self.taken) < self.bounds.batch_size:
                self.the_step_takes_a_group()
            assert len(self.taken) == self.bounds.batch_size, "deadlock"
            self.the_step_commits("consumed")
            self.the_next_step_begins()
        trained = [position for position, fate in self.fates.items() if fate != "skipped"]
        assert len(trained) == self.steps * self.bounds.batch_size
        assert not self.running


TestDispatch = DispatchMachine.TestCase
TestDispatch.settings = settings(
    max_examples=100, stateful_step_count=50, deadline=None, suppress_health_check=list(HealthCheck)
)
