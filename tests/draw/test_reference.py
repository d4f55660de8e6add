"""The dispatcher, its samplers, statistics and rules against the slow model, whatever happens to a run.

PLATOON_DISPATCH_EXAMPLES=2000 tries as many runs.
"""

from __future__ import annotations

import json
import os
import random
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from platoon.draw.admission.gate import AdmissionGate, AdmissionSettings, EntryRule
from platoon.draw.dispatcher import Dispatcher, DispatchSettings
from platoon.draw.permits import PermitPool, Reservation
from platoon.draw.pool import PoolRow, TaskPool
from platoon.draw.records import Ask, Decision, Draw, Drawn, Fated, Key, Record, SlotSkipped, Start, Wait
from platoon.draw.samplers.sampling import build_sampling, entry_infos
from platoon.draw.samplers.settings import EntrySampling, SamplingSettings
from platoon.draw.view import TaskStatsView
from platoon.stats.schema import Fate, GroupRecord, MemberResult
from platoon.stats.store import TaskStatsStore
from tests.draw.reference import OWN, Rules, SlowRun

SIZES = {"a": 2, "b": 3, "c": 4}
PERMITS = 6
SAMPLERS = [
    ("uniform", None, None),
    ("weighted", None, None),
    ("pass_rate", None, None),
    (OWN + "Listener", None, None),
    (OWN + "Stumbling", None, None),
    ("weighted", "pass_rate", None),
    ("weighted", OWN + "Stumbling", "pass_rate"),
    (OWN + "Alternate", None, "pass_rate"),
    (OWN + "StumblingSlots", "pass_rate", None),
]
OPTIONS = [{}, {"explore": 0.5, "max_draws_per_epoch": 1, "seed": 4}, {"max_outstanding_per_task": 1, "candidates": 2}]
OWN_METRICS = ("top10_share", "eligible_share", "cap_lifted", "prior_share", "evidence_age")


def pool_of(bare: bool) -> TaskPool:
    """Three entries; two share a label, one has two; c may have none. A task is listed twice."""
    labels: dict[str, list[str | None]] = {"a": ["x"], "b": ["x", "y"], "c": [None if bare else "z"]}
    sizes = {"a": 5, "b": 4, "c": 2}
    rows = [PoolRow(f"{e}{i}", e, labels[e][i % len(labels[e])]) for e, n in sizes.items() for i in range(n)]
    return TaskPool([*rows[:4], rows[0], *rows[4:]])


@dataclass(frozen=True)
class World:
    """What a run is configured to. `adaptive`: whether a's sampler, where it has one, still draws for it."""

    pool: TaskPool
    samplers: tuple[str, str | None, str | None]
    options: Mapping[str, Any]
    bounds: DispatchSettings
    band: tuple[float, float] | None
    adaptive: bool = True

    @property
    def run(self) -> SamplingSettings:
        name, of_a, of_b = self.samplers
        given = dict(self.options)
        entries = (
            self.entry("a", of_a if self.adaptive else None, 2.5, 3),
            self.entry("b", of_b, 1.0, 5),
            self.entry("c", None, 2.0, 0),
        )
        return SamplingSettings(self.bounds.batch_size, entries, name, given if name == "pass_rate" else {})

    def entry(self, label: str, sampler: str | None, weight: float, seed: int) -> EntrySampling:
        given = dict(self.options) if sampler == "pass_rate" else {}
        return EntrySampling(label, weight, seed, sampler, given, SIZES[label])

    @property
    def admission(self) -> AdmissionSettings:
        return AdmissionSettings("informative", {"band": self.band}, {"b": EntryRule("all")})

    @property
    def rules(self) -> Rules:
        named = None
        if self.bounds.cap is not None:
            named = {"a": ("informative", self.band), "b": ("all@b", None), "c": ("informative", self.band)}
        return Rules(self.samplers[0], self.run.entries, self.bounds, dict(self.options), named)

    def store(self) -> TaskStatsStore:
        rows = [(row.task_id, row.entry, row.label) for row in self.pool.rows]
        return TaskStatsStore(rows, entry_infos(self.run, self.pool))

    def dispatcher(self, start: int, steps: int, store: TaskStatsStore) -> tuple[Dispatcher, AdmissionGate]:
        view = TaskStatsView(store, lambda: machine.version)
        machine = Dispatcher(
            self.pool, build_sampling(self.run, self.pool, view), self.bounds, start=start, steps_left=steps
        )
        return machine, AdmissionGate(self.admission, self.run, entry_infos(self.run, self.pool), view)


def plain(decision: Decision | Record) -> Any:
    """As values to compare: scores to nine digits."""

    def rounded(value: Any) -> Any:
        if isinstance(value, Mapping):
            return {key: rounded(item) for key, item in value.items()}
        if isinstance(value, list | tuple):
            return [rounded(item) for item in value]
        return float(f"{value:.8g}") if isinstance(value, float) else value

    return type(decision).__name__, rounded(asdict(decision))


class DispatchMachine(RuleBasedStateMachine):
    @initialize(
        bare=st.booleans(),
        samplers=st.sampled_from(SAMPLERS),
        options=st.sampled_from(OPTIONS),
        batch_size=st.integers(1, 4),
        ahead=st.sampled_from([None, 0, 1, 2, 3]),
        limits=st.dictionaries(st.sampled_from(["x", "y", "z"]), st.integers(1, 3), max_size=3),
        backlog=st.sampled_from([None, 1, 2]),
        refill=st.sampled_from([None, 1.0, 2.5]),
        band=st.sampled_from([None, (0.5, 0.75)]),
        mute=st.sampled_from([None, "a", "c"]),
        rolling=st.booleans(),
        steps=st.integers(1, 12),
    )
    def begin(self, **drawn: Any) -> None:
        size, refill = drawn["batch_size"], drawn["refill"]
        most = None if refill is None else max(size, int(refill * size))
        bounds = DispatchSettings(size, 2, drawn["ahead"], SIZES, drawn["limits"], drawn["backlog"], most)
        self.mute, self.refilled = drawn["mute"], most is not None
        self.world = World(pool_of(drawn["bare"]), drawn["samplers"], drawn["options"], bounds, drawn["band"])
        self.rolling, self.steps, self.done, self.start = drawn["rolling"], drawn["steps"], 0, 1
        self.store = self.world.store()
        self.dispatcher, self.gate = self.world.dispatcher(1, self.steps, self.store)
        self.model = SlowRun(self.world.pool.rows, self.world.rules, self.steps)
        self.permits = PermitPool(PERMITS)
        self.claims: list[Reservation] = []
        self.pending: tuple[Start | Ask, Reservation] | None = None
        self.running: dict[Key, tuple[Draw, Reservation]] = {}
        self.queue: list[tuple[Draw, bool]] = []  # and whether its place is not filled: a marker, or a failed group
        self.failed: set[Key] = set()
        self.taken: dict[Key, Fate] = {}
        self.filled, self.committed = 0, False
        self.fates: dict[int, str] = {}
        self.owner: dict[Key, int] = {}

    @property
    def bounds(self) -> DispatchSettings:
        return self.world.bounds

    @property
    def full(self) -> bool:
        return self.filled >= self.bounds.batch_size or self.dispatcher.closed

    # -- what happens to a run

    @rule()
    def dispatch(self) -> None:
        """Decide until nothing can start, as the driver does: one item waits for permits at a time."""
        while self.pending is None or self.pending[1].startable:
            if self.pending is not None:
                self.go(*self.pending)
            chosen = self.dispatcher.choose()
            assert plain(chosen) == plain(self.model.choose())
            self.note(chosen.records)
            if isinstance(chosen, Wait):
                return
            size = chosen.size if isinstance(chosen, Ask) else chosen.draw.group_size
            reservation = self.permits.reserve(size, rolling=self.rolling)
            self.claims.append(reservation)
            self.pending = chosen, reservation

    def go(self, chosen: Start | Ask, reservation: Reservation) -> None:
        decision = chosen
        if isinstance(chosen, Ask):
            for _, record in self.store.flush():
                self.dispatcher.sampling.observe(record)
            self.model.flush()
            answer = self.dispatcher.decide()
            assert plain(answer) == plain(self.model.decide())
            assert isinstance(answer, Start)
            decision = answer
            self.note(decision.records)
        assert isinstance(decision, Start)
        reservation.shrink(decision.draw.group_size)
        self.running[decision.draw.key] = (decision.draw, reservation)
        self.pending = None

    @precondition(lambda self: self.running)
    @rule(data=st.data())
    def a_rollout_ends(self, data: st.DataObject) -> None:
        _, reservation = self.running[data.draw(st.sampled_from(sorted(self.running)))]
        if reservation.held > 1:
            reservation.give_back(1)

    @precondition(lambda self: self.running)
    @rule(data=st.data())
    def a_lease_is_released(self, data: st.DataObject) -> None:
        """The group's slot and permits are free, and its result is not in yet."""
        key = data.draw(st.sampled_from(sorted(self.running)))
        self.running[key][1].close()
        self.dispatcher.released(key)
        self.model.of(key).released = True

    @precondition(lambda self: self.running)
    @rule(data=st.data(), passes=st.integers(0, 4), valid=st.integers(0, 4), failed=st.booleans(), datums=st.booleans())
    def a_group_ends(self, data: st.DataObject, passes: int, valid: int, failed: bool, datums: bool) -> None:
        key = data.draw(st.sampled_from(sorted(self.running)))
        self.end(key, passes, valid, failed and passes % 2 == 0, datums)

    def end(self, key: Key, passes: int, valid: int, failed: bool, datums: bool) -> None:
        draw, reservation = self.running.pop(key)
        reservation.close()
        valid = 0 if failed or draw.entry == self.mute else min(valid, draw.group_size)
        members = tuple(
            MemberResult(1.0, float(i < passes), i < valid, "scored", "ok")
            for i in range(0 if failed else draw.group_size)
        )
        verdict = "trained" if 0 < passes < valid else "uniform" if valid else "no_completed_root"
        record = GroupRecord(
            *key, draw.task_id, draw.entry, {}, draw.group_size, draw.sampler, draw.reason, draw.position,
            {"main": draw.version}, members, "failed" if failed else verdict, draw.score,
        )  # fmt: skip
        self.dispatcher.released(key)
        self.store.hold(record)
        ruling = self.gate.decide(record, failed=failed) if self.bounds.cap is not None else None
        expected, fated = self.model.ended(key, record, failed, datums)
        assert ruling == expected
        if failed:
            self.failed.add(key)
        if ruling is None or ruling.admit:
            self.dispatcher.settled(key)
            self.queue.append((draw, False))
            return
        fate: Fate = "failed" if failed else "rejected"
        records = self.dispatcher.rejected(key, fate, ruling.rule, ruling.reason, held=failed or not datums)
        assert records == (fated,)
        self.note(records)
        self.queue.append((draw, True))

    @precondition(lambda self: self.queue and not self.committed and not self.full)
    @rule(stale=st.booleans())
    def the_step_takes_a_group(self, stale: bool) -> None:
        draw, marker = self.queue.pop(0)
        wasted = stale or draw.key in self.failed
        fills = not marker and not (wasted and self.bounds.cap is not None)
        self.dispatcher.dequeued(draw.key, fills=fills)
        self.model.taken(draw.key, fills)
        self.filled += fills
        if not marker:
            self.taken[draw.key] = "failed" if draw.key in self.failed else "stale" if stale else "consumed"

    @precondition(lambda self: self.full and not self.committed)
    @rule()
    def the_step_commits(self) -> None:
        self.note(self.dispatcher.commit(self.taken))
        self.model.committed()
        self.taken, self.committed = {}, True
        self.done += 1

    @precondition(lambda self: self.committed)
    @rule(updates=st.sampled_from([0, 1, 20]))
    def the_next_step_begins(self, updates: int) -> None:
        self.dispatcher.version += updates
        self.model.version += updates
        self.dispatcher.step_started()
        self.model.step_started()
        self.filled, self.committed = 0, False
        found = self.dispatcher.sampling.metrics()
        for place, name, entry in (("", self.world.samplers[0], None), ("environment/a/", "pass_rate@a", "a")):
            if name.startswith("pass_rate") and place + "top10_share" in "".join(found):
                count = len({row.task_id for row in self.world.pool.rows if entry is None or row.entry == entry})
                seen = {key: found[f"sampler/{place}{key}"] for key in OWN_METRICS if f"sampler/{place}{key}" in found}
                assert seen == pytest.approx(self.model.metrics(name, count))

    @rule(moves=st.lists(st.tuples(st.booleans(), st.integers(0, 20)), min_size=5, max_size=25))
    def a_while_goes_by(self, moves: list[tuple[bool, int]]) -> None:
        for take, number in moves:
            if number % 4:
                self.dispatch()
            elif self.pending is not None and take:
                self.a_stop_gives_the_pending_item_back()
            self.bounds_hold()
            if self.committed:
                self.the_next_step_begins(number)
            elif self.full:
                self.the_step_commits()
            elif take and self.queue:
                self.the_step_takes_a_group(number == 0)
            elif self.running:
                key = sorted(self.running)[number % len(self.running)]
                self.end(key, number % 5, 4 - number % 2, number == 20, number % 3 > 0)

    @precondition(lambda self: self.pending is not None)
    @rule()
    def a_stop_gives_the_pending_item_back(self) -> None:
        assert self.pending is not None
        chosen, reservation = self.pending
        reservation.close()
        if isinstance(chosen, Start):
            self.dispatcher.put_back(chosen.draw.key)
            self.model.of(chosen.draw.key).where = "parked"
        else:
            self.dispatcher.withdraw()
            self.model.withdraw()
        self.pending = None

    @precondition(lambda self: self.start < 5)
    @rule(unread=st.integers(0, 15), other=st.integers(0, 3))
    def restart(self, unread: int, other: int) -> None:
        """Kill the run at any moment and go on from its state, perhaps with other settings or a kept group lost."""
        for _, record in self.store.flush():
            self.dispatcher.sampling.observe(record)
        self.model.flush()
        state = json.loads(json.dumps(self.dispatcher.state(), allow_nan=False))
        self.agree_on_the_state(state)
        books = json.loads(json.dumps(self.store.snapshot(start=self.start, next_seq=0)))
        kept = self.model.kept()
        del kept[unread : unread + 1]
        bounds, adaptive = self.bounds, self.world.adaptive
        if other == 0:
            cap = None if bounds.cap is not None else bounds.batch_size * 2
            bounds = DispatchSettings(**{**vars(bounds), "cap": cap})
            self.refilled = True
            adaptive = not adaptive
        self.world = World(self.world.pool, self.world.samplers, self.world.options, bounds, self.world.band, adaptive)
        self.start += 1
        store = self.world.store()
        store.load(books)
        twin, self.gate = self.world.dispatcher(self.start, self.steps - self.done, store)
        twin.version = self.dispatcher.version
        restored = twin.load_state(state, [draw.key for draw in kept])
        for draw in kept:
            twin.keep(draw.key, version=draw.version, reason=draw.reason, score=draw.score)
        self.store, self.dispatcher = store, twin
        expected = self.model.restart([draw.key for draw in kept], self.world.rules, self.steps - self.done)
        assert restored.warnings == ()
        assert restored.kept == tuple(draw.key for draw in kept)
        assert [plain(record) for record in restored.records] == [plain(record) for record in expected]
        self.owner = {key: at for key, at in self.owner.items() if key in restored.kept}
        self.note(restored.records)
        self.agree_on_the_state(self.dispatcher.state())
        self.permits, self.claims, self.running, self.pending = PermitPool(PERMITS), [], {}, None
        self.queue, self.taken = [(draw, False) for draw in kept], {}
        self.filled, self.committed = 0, False

    def agree_on_the_state(self, state: Mapping[str, Any]) -> None:
        expected = self.model.state()
        for part in ("next_position", "waiting", "tokens"):
            assert state[part] == expected[part]
        for part in ("outstanding", "drawn", "fallback_slots"):
            assert sorted(state[part]) == expected[part]
        assert (state["kept"] or {"groups": []})["groups"] == expected["kept"]
        for record in (state["samplers"]["run"], *state["samplers"]["entries"].values()):
            if self.model.adaptive(record["name"].partition("@")[0]):
                assert (record["decisions"], record["state"]) == self.model.memory(record["name"])

    # -- what must always hold

    def note(self, records: Iterable[Record]) -> None:
        for record in records:
            if isinstance(record, Drawn):
                draw = record.draw
                assert draw.key not in self.owner
                self.owner[draw.key] = draw.position
                if draw.reissues is None or not self.store.reissue(draw.reissues, draw.key):
                    self.store.draw(*draw.key, draw.task_id, draw.position)
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
        if hasattr(self, "dispatcher"):
            tokens = [position for positions in self.dispatcher.state()["tokens"].values() for position in positions]
            assert sorted([*self.owner.values(), *self.fates, *tokens]) == list(range(self.dispatcher.next_position))

    @invariant()
    def bounds_hold(self) -> None:
        if not hasattr(self, "dispatcher"):
            return
        assert sum(claim.held for claim in self.claims) == self.permits.in_use <= PERMITS
        self.claims_are_served_in_order()
        assert self.dispatcher.in_use == self.model.in_use()
        assert self.dispatcher.counted == self.model.counted()
        if not self.refilled:  # a step that closed short leaves groups that the rest of the run does not need
            assert self.dispatcher.in_use <= max(self.model.steps, 0) * self.bounds.batch_size
        if (horizon := self.bounds.horizon) is not None:
            assert self.dispatcher.in_use <= horizon
        for label, limit in self.bounds.limits.items():
            assert self.dispatcher.active().get(label, 0) == self.model.active(label) <= limit

    def claims_are_served_in_order(self) -> None:
        """With something free nobody waits, but the first for a whole group's permits; the others hold nothing."""
        waiting = [claim for claim in self.claims if not claim.closed and claim.granted < claim.size]
        assert all(claim.granted == 0 for claim in waiting[1:])
        if waiting and self.permits.free:
            assert not self.rolling
            assert waiting[0].size > self.permits.free

    def teardown(self) -> None:
        """Whatever happened, the run can be finished: every step fills, or reaches its cap."""
        turns = 0
        while hasattr(self, "dispatcher") and self.done < self.steps:
            turns += 1
            assert turns < 2000, f"no end: {self.dispatcher.describe()}"
            if self.committed:
                self.the_next_step_begins(1)
            elif self.full:
                self.the_step_commits()
                continue
            self.dispatch()
            if self.queue and not self.full:
                self.the_step_takes_a_group(False)
            elif not self.full:
                assert self.running, f"deadlock: {self.dispatcher.describe()}"
                self.end(min(self.running), turns % 5, 4, turns % 7 == 0, turns % 2 == 0)


@pytest.mark.parametrize(
    "samplers", SAMPLERS, ids=lambda names: "-".join(str(name).removeprefix(OWN) for name in names)
)
def test_long_runs(samplers: tuple[str, str | None, str | None]) -> None:
    """What the machine does, at length: every sampler under limits, a horizon and restarts, with rules and without."""
    for seed in range(4):
        dice = random.Random(f"{samplers}{seed}")
        machine = DispatchMachine()
        machine.begin(
            bare=seed == 3,
            samplers=samplers,
            options=OPTIONS[seed % 3],
            batch_size=dice.randint(2, 4),
            ahead=dice.choice([0, 1, 2, None]) if seed else 2,
            limits={"x": 3, "y": 1, "z": 1} if seed % 2 else {"x": dice.randint(1, 3), "z": 1},
            backlog=dice.choice([None, 2]),
            refill=None if seed % 2 else 2.5,
            band=(0.5, 0.75) if seed else None,
            mute=dice.choice([None, "a", "c"]),
            rolling=dice.random() < 0.5,
            steps=20,
        )
        while machine.done < machine.steps and machine.start < 9:
            moves = [(dice.random() < 0.4, dice.randint(0, 20)) for _ in range(30)]
            machine.a_while_goes_by(moves)
            machine.restart(dice.randint(0, 15), dice.randint(0, 3))
            machine.every_position_is_owed_or_has_one_fate()
        machine.teardown()


TestDispatch = DispatchMachine.TestCase
TestDispatch.settings = settings(
    max_examples=int(os.environ.get("PLATOON_DISPATCH_EXAMPLES", "40")),
    stateful_step_count=50,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
