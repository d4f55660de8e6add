"""Adaptive samplers, owed slots, admission and limits under random events: what must hold whatever happens."""

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
from platoon.draw.records import Ask, Draw, Drawn, Fated, Key, Record, SlotSkipped, Start, Wait
from platoon.draw.samplers.sampling import build_sampling
from platoon.draw.samplers.settings import EntrySampling, SamplingSettings
from platoon.draw.view import TaskStatsView
from platoon.stats.schema import EntryInfo, Fate, GroupRecord, MemberResult
from platoon.stats.store import TaskStatsStore

SIZES = {"a": 2, "b": 3, "c": 4}
LABELS = {"a": ["x"], "b": ["x", "y"], "c": ["z"]}
ROWS = [
    PoolRow(f"{e}{i}", e, LABELS[e][i % len(LABELS[e])]) for e, n in (("a", 5), ("b", 4), ("c", 2)) for i in range(n)
]
POOL = TaskPool(ROWS)
INFOS = {entry: EntryInfo(size, name=entry, task_ids=tuple(POOL.task_ids(entry))) for entry, size in SIZES.items()}
PERMITS = 6
OWN = "tests.draw.own_samplers:"
Pending = tuple[Start | Ask, Reservation]


@dataclass(frozen=True)
class World:
    """What a run is configured to."""

    run: SamplingSettings
    bounds: DispatchSettings
    rolling: bool
    steps: int

    def store(self) -> TaskStatsStore:
        return TaskStatsStore([(row.task_id, row.entry, row.label) for row in POOL.rows], INFOS)

    def dispatcher(self, start: int, done: int, store: TaskStatsStore) -> Dispatcher:
        view = TaskStatsView(store, lambda: machine.version)
        sampling = build_sampling(self.run, POOL, view)
        machine = Dispatcher(POOL, sampling, self.bounds, start=start, steps_left=self.steps - done)
        return machine


class AdaptiveMachine(RuleBasedStateMachine):
    @initialize(
        batch_size=st.integers(1, 4),
        ahead=st.sampled_from([None, 0, 1, 3]),
        limits=st.dictionaries(st.sampled_from(["x", "y", "z"]), st.integers(1, 2), max_size=3),
        backlog=st.sampled_from([None, 1]),
        cap=st.sampled_from([None, 1.0, 2.5]),
        samplers=st.sampled_from(
            [
                ("pass_rate", None, None),
                (OWN + "Listener", None, None),
                ("weighted", "pass_rate", None),
                ("weighted", OWN + "Listener", "pass_rate"),
                (OWN + "Alternate", None, "pass_rate"),
                ("uniform", None, None),
            ]
        ),
        rolling=st.booleans(),
        steps=st.integers(1, 6),
    )
    def begin(
        self,
        batch_size: int,
        ahead: int | None,
        limits: dict[str, int],
        backlog: int | None,
        cap: float | None,
        samplers: tuple[str, str | None, str | None],
        rolling: bool,
        steps: int,
    ) -> None:
        name, of_a, of_b = samplers
        entries = (
            EntrySampling("a", task_sampler=of_a, group_size=2),
            EntrySampling("b", task_sampler=of_b, group_size=3),
            EntrySampling("c", group_size=4),
        )
        most = None if cap is None else max(batch_size, int(cap * batch_size))
        bounds = DispatchSettings(batch_size, 2, ahead, SIZES, limits, backlog, most)
        self.world = World(SamplingSettings(batch_size, entries, name), bounds, rolling, steps)
        self.bounds = bounds
        self.store = self.world.store()
        self.start, self.done = 1, 0
        self.dispatcher = self.world.dispatcher(1, 0, self.store)
        self.permits = PermitPool(PERMITS)
        self.pending: Pending | None = None
        self.running: dict[Key, tuple[Draw, Reservation]] = {}
        self.queue: list[tuple[Draw, bool]] = []  # and whether it is the marker of a rejected group
        self.taken: list[Draw] = []
        self.filled = self.admitted = 0
        self.fates: dict[int, str] = {}
        self.owner: dict[Key, int] = {}

    @property
    def full(self) -> bool:
        return self.filled >= self.bounds.batch_size or self.dispatcher.closed

    # -- what happens to a run

    @rule()
    def dispatch(self) -> None:
        """Decide until nothing can start, as the driver does: one item waits for permits at a time."""
        while True:
            if self.pending is not None:
                chosen, reservation = self.pending
                if not reservation.startable:
                    return
                self.pending = None
                decision = chosen if isinstance(chosen, Start) else self.dispatcher.decide()
                if isinstance(decision, Wait):
                    assert decision.reason == "sampler"
                    reservation.close()
                    return
                if isinstance(chosen, Ask):
                    self.note(decision.records)
                    if chosen.entry is not None:
                        assert decision.draw.entry == chosen.entry
                assert decision.draw.group_size <= reservation.size, "no more permits than were asked for"
                reservation.shrink(decision.draw.group_size)
                self.running[decision.draw.key] = (decision.draw, reservation)
            chosen_next = self.dispatcher.choose()
            self.note(chosen_next.records)
            if isinstance(chosen_next, Wait):
                return
            size = chosen_next.size if isinstance(chosen_next, Ask) else chosen_next.draw.group_size
            self.pending = (chosen_next, self.permits.reserve(size, rolling=self.world.rolling))

    @precondition(lambda self: self.running)
    @rule(data=st.data(), passes=st.integers(0, 4), verdict=st.sampled_from(["admit", "reject", "empty", "fail"]))
    def a_group_ends(self, data: st.DataObject, passes: int, verdict: str) -> None:
        self.end(data.draw(st.sampled_from(sorted(self.running))), passes, verdict)

    def end(self, key: Key, passes: int, verdict: str) -> None:
        draw, reservation = self.running.pop(key)
        reservation.close()
        self.dispatcher.released(key)
        size = draw.group_size
        members = tuple(MemberResult(1.0, float(i < passes), verdict != "fail", "scored", "ok") for i in range(size))
        kind = "trained" if 0 < passes < size else "uniform"
        at = {"main": draw.version}
        record = GroupRecord(
            *key, draw.task_id, draw.entry, {}, size, draw.sampler, draw.reason, draw.position, at, members, kind
        )
        self.store.settle(record)
        self.dispatcher.sampling.observe(record)
        if self.bounds.cap is None or verdict == "admit":
            self.dispatcher.settled(key)
            self.queue.append((draw, False))
            return
        fate: Fate = "failed" if verdict == "fail" else "rejected"
        self.note(self.dispatcher.rejected(key, fate, "r", verdict, held=verdict != "reject"))
        self.queue.append((draw, True))

    @precondition(lambda self: self.queue and not self.full)
    @rule(stale=st.booleans())
    def the_step_takes_a_group(self, stale: bool) -> None:
        draw, marker = self.queue.pop(0)
        fills = not marker and not (stale and self.bounds.cap is not None)
        self.dispatcher.dequeued(draw.key, fills=fills)
        self.filled += fills
        if not marker:
            self.taken.append(draw)

    @precondition(lambda self: self.full)
    @rule()
    def the_step_ends(self) -> None:
        self.note(self.dispatcher.commit({draw.key: "consumed" for draw in self.taken}))
        self.taken, self.filled = [], 0
        self.done += 1
        self.dispatcher.version += 1
        self.dispatcher.step_started()

    @precondition(lambda self: self.pending is not None)
    @rule()
    def a_stop_gives_the_pending_item_back(self) -> None:
        assert self.pending is not None
        chosen, reservation = self.pending
        reservation.close()
        if isinstance(chosen, Start):
            self.dispatcher.put_back(chosen.draw.key)
        else:
            self.dispatcher.withdraw()
        self.pending = None

    @rule()
    def restart(self) -> None:
        """Kill the run at any moment and go on from its state: two starts from one state decide alike."""
        state = json.loads(json.dumps(self.dispatcher.state(), allow_nan=False))
        books = json.loads(json.dumps(self.store.snapshot(start=self.start, next_seq=0)))
        kept = [*self.taken, *(draw for draw, marker in self.queue if not marker)]
        self.start += 1
        traces = []
        for _ in range(2):
            store = self.world.store()
            store.load(books)
            twin = self.world.dispatcher(self.start, self.done, store)
            twin.version = self.dispatcher.version
            restored = twin.load_state(state, [draw.key for draw in kept])
            assert restored.warnings == ()
            assert restored.kept == tuple(draw.key for draw in kept)
            traces.append((store, twin, restored, self.peek(state, books, kept)))
        assert traces[0][1].state() == traces[1][1].state()
        assert traces[0][3] == traces[1][3]
        self.store, self.dispatcher, restored, _ = traces[0]
        for record in restored.records:
            if isinstance(record, Drawn):
                assert record.draw.reissues is not None
                self.store.reissue(record.draw.reissues, record.draw.key)
        self.owner = {key: at for key, at in self.owner.items() if key in set(restored.kept)}
        self.note(record for record in restored.records if not isinstance(record, Drawn))
        self.owner |= {r.draw.key: r.draw.position for r in restored.records if isinstance(r, Drawn)}
        self.permits, self.running, self.pending = PermitPool(PERMITS), {}, None
        self.queue, self.taken, self.filled = [(draw, False) for draw in kept], [], 0

    def peek(self, state: dict[str, object], books: dict[str, object], kept: list[Draw]) -> list[str]:
        """The next decisions of a start from this state."""
        store = self.world.store()
        store.load(books)
        twin = self.world.dispatcher(self.start, self.done, store)
        twin.load_state(state, [draw.key for draw in kept])
        seen: list[str] = []
        while len(seen) < 12:
            decision = twin.choose()
            if isinstance(decision, Ask):
                seen.append(f"ask {decision.entry} for {decision.size}")
                decision = twin.decide()
            if isinstance(decision, Wait):
                return [*seen, decision.reason]
            seen.append(f"{decision.draw.task_id} at {decision.draw.position} because {decision.draw.reason}")
            store.draw(*decision.draw.key, decision.draw.task_id)
        return seen

    # -- what must always hold

    def note(self, records: Iterable[Record]) -> None:
        for record in records:
            if isinstance(record, Drawn):
                assert record.draw.key not in self.owner
                self.owner[record.draw.key] = record.draw.position
                self.store.draw(*record.draw.key, record.draw.task_id, record.draw.position)
            elif isinstance(record, SlotSkipped):
                assert record.position not in self.fates
                self.fates[record.position] = "slot_skipped"
            elif isinstance(record, Fated):
                position = self.owner.pop(record.key)
                assert position not in self.fates
                self.fates[position] = record.fate
                self.store.fate(*record.key, record.fate)

    @invariant()
    def every_position_is_owed_or_has_one_fate(self) -> None:
        if not hasattr(self, "dispatcher"):
            return
        tokens = [position for positions in self.dispatcher.state()["tokens"].values() for position in positions]
        assert sorted([*self.owner.values(), *self.fates, *tokens]) == list(range(self.dispatcher.next_position))

    @invariant()
    def bounds_hold(self) -> None:
        if not hasattr(self, "dispatcher"):
            return
        held = [reservation for _, reservation in self.running.values()]
        held += [self.pending[1]] if self.pending else []
        assert sum(reservation.held for reservation in held) == self.permits.in_use <= PERMITS
        places = self.dispatcher.places
        starting = isinstance(self.pending[0], Ask) if self.pending else False
        draws = len(self.running) + (self.pending is not None and not starting)
        assert places.running == draws
        if (horizon := self.bounds.horizon) is not None and self.bounds.cap is None:
            assert self.dispatcher.in_use <= horizon
        for label, limit in self.bounds.limits.items():
            running = [draw for draw, _ in self.running.values() if draw.label == label]
            assert len(running) <= self.dispatcher.active().get(label, 0) <= limit
        if self.bounds.cap is not None:
            assert self.dispatcher.counted <= self.bounds.cap

    def teardown(self) -> None:
        """Whatever happened, the run can be finished: every step fills, or reaches its cap."""
        if not hasattr(self, "dispatcher"):
            return
        turns = 0
        while self.done < self.world.steps:
            turns += 1
            assert turns < 2000, f"no end: {self.dispatcher.describe()}"
            if self.full:
                self.the_step_ends()
                continue
            self.dispatch()
            if self.queue:
                self.the_step_takes_a_group(False)
            else:
                assert self.running, f"deadlock: {self.dispatcher.describe()}"
                self.end(min(self.running), turns % 5, ("admit", "reject", "empty", "fail")[turns % 4])
        if self.bounds.cap is None:
            trained = [fate for fate in self.fates.values() if fate == "consumed"]
            assert len(trained) == self.world.steps * self.bounds.batch_size


TestAdaptive = AdaptiveMachine.TestCase
TestAdaptive.settings = settings(
    max_examples=30, stateful_step_count=40, deadline=None, suppress_health_check=list(HealthCheck)
)
