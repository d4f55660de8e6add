"""Decisions made when a group can start: asks of the run's sampler, slots owed to entries, and their resume."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from platoon.draw.dispatcher import Dispatcher, DispatchSettings
from platoon.draw.pool import PoolRow, TaskPool
from platoon.draw.records import Ask, Record, SlotSkipped, Start, Wait
from platoon.draw.samplers.sampling import Pick, build_sampling
from platoon.draw.samplers.settings import EntrySampling, SamplingSettings

LISTENER = "tests.draw.own_samplers:Listener"
SIZES = {"a": 2, "b": 4}
POOL = TaskPool([PoolRow(f"{e}{i}", e, e) for e in ("a", "b") for i in range(4)])


def dispatcher_of(
    run: str = "weighted",
    of_a: str | None = LISTENER,
    *,
    of_b: str | None = None,
    limits: Mapping[str, int] | None = None,
    backlog: int | None = None,
    start: int = 1,
    entries: str = "ab",
    pool: TaskPool = POOL,
) -> Dispatcher:
    own = {"a": of_a, "b": of_b}
    settings = SamplingSettings(
        2, tuple(EntrySampling(e, task_sampler=own[e], group_size=SIZES[e]) for e in entries), run
    )
    bounds = DispatchSettings(2, 2, 3, SIZES, limits or {}, backlog)
    return Dispatcher(pool, build_sampling(settings, pool), bounds, start=start, steps_left=10)


def decided(dispatcher: Dispatcher) -> Start:
    decision = dispatcher.choose()
    if isinstance(decision, Ask):
        answer = dispatcher.decide()
        assert isinstance(answer, Start)
        return answer
    assert isinstance(decision, Start)
    return decision


def test_a_slot_asks_for_its_entrys_permits_and_keeps_its_position() -> None:
    dispatcher = dispatcher_of()
    ask = dispatcher.choose()
    assert ask == Ask(2, "a")
    assert dispatcher.in_use == 1
    start = dispatcher.decide()
    assert isinstance(start, Start)
    assert (start.draw.position, start.draw.entry, start.draw.sampler) == (0, "a", f"{LISTENER}@a")
    assert decided(dispatcher).draw.position == 1


def test_a_slot_given_back_is_the_oldest_again() -> None:
    dispatcher = dispatcher_of()
    dispatcher.choose()
    assert dispatcher.state()["tokens"] == {"a": [0]}
    dispatcher.withdraw()
    assert dispatcher.in_use == 0
    assert dispatcher.owed() == {"a": 1}
    assert decided(dispatcher).draw.position == 0


def test_slots_of_a_full_label_wait_and_are_skipped_beyond_the_backlog() -> None:
    dispatcher = dispatcher_of(limits={"a": 1}, backlog=1)
    records: list[Record] = []
    draws = [decided(dispatcher).draw]
    while not isinstance(decision := dispatcher.choose(), Wait):
        assert isinstance(decision, Start)
        records += decision.records
        draws.append(decision.draw)
    records += decision.records
    assert [draw.entry for draw in draws].count("a") == 1
    assert dispatcher.owed() == {"a": 1}
    skipped = [record for record in records if isinstance(record, SlotSkipped)]
    assert skipped
    assert skipped[0].event() == {
        "event": "slot_skipped",
        "start": 1,
        "position": skipped[0].position,
        "entry": "a",
        "why": "backlog",
    }
    dispatcher.settled(draws[0].key)
    assert dispatcher.choose() == Ask(2, "a")


def test_the_runs_sampler_draws_nothing_larger_than_the_permits_asked_for() -> None:
    dispatcher = dispatcher_of(LISTENER, None, limits={"b": 1})
    first = dispatcher.choose()
    assert first == Ask(4)
    draws = [dispatcher.decide()]
    while not any(isinstance(start, Start) and start.draw.entry == "b" for start in draws):
        dispatcher.choose()
        draws.append(dispatcher.decide())
    assert dispatcher.choose() == Ask(2), "b is full: nothing larger than a group of a can start"
    large = next(start.draw for start in draws if isinstance(start, Start) and start.draw.entry == "b")
    dispatcher.settled(large.key)
    start = dispatcher.decide()
    assert isinstance(start, Start)
    assert start.draw.entry == "a"


def test_nothing_eligible_waits_for_a_change() -> None:
    dispatcher = dispatcher_of(LISTENER, None, limits={"a": 1, "b": 1})
    for _ in range(2):
        decided(dispatcher)
    decision = dispatcher.choose()
    assert isinstance(decision, Wait)
    assert decision.reason == "labels"


def owing() -> Dispatcher:
    dispatcher = dispatcher_of(limits={"a": 1})
    decided(dispatcher)
    while isinstance(dispatcher.choose(), Start):
        pass
    assert dispatcher.owed() == {"a": 5}
    return dispatcher


def test_slots_wait_again_after_a_resume() -> None:
    state = owing().state()
    again = dispatcher_of(limits={"a": 1}, start=2)
    restored = again.load_state(state)
    assert restored.warnings == ()
    assert again.state()["tokens"] == state["tokens"]
    assert again.sampling.entries["a"].decisions == 1


def test_slots_of_several_entries_go_on_by_age() -> None:
    state = dispatcher_of(of_b=LISTENER).state() | {"next_position": 4, "tokens": {"a": [0, 3], "b": [1, 2]}}
    again = dispatcher_of(of_b=LISTENER, start=2)
    again.load_state(state)
    assert [decided(again).draw.position for _ in range(5)] == [0, 1, 2, 3, 4]


def test_slots_of_an_entry_that_is_static_now_are_drawn_at_once() -> None:
    state = owing().state()
    again = dispatcher_of(of_a=None, limits={"a": 1}, start=2)
    again.load_state(state)
    positions = {row[3]: row[2] for row in again.state()["outstanding"]}
    straight = dispatcher_of(of_a=None).sampling
    taken = [straight.take(position) for position in range(12)]
    for position in state["tokens"]["a"]:
        pick = taken[position]
        assert isinstance(pick, Pick)
        assert positions[position] == POOL[pick.row_index].task_id


@pytest.mark.parametrize(("entries", "run", "why"), [("b", "weighted", "entry_left"), ("ab", "uniform", "no_slots")])
def test_slots_nobody_can_draw_are_skipped(entries: str, run: str, why: str) -> None:
    state = owing().state()
    rows = [row for row in POOL.rows if row.entry in list(entries)]
    again = dispatcher_of(run, None, start=2, entries=entries, pool=TaskPool(rows))
    restored = again.load_state(state)
    skipped = [record for record in restored.records if isinstance(record, SlotSkipped)]
    assert [record.position for record in skipped] == state["tokens"]["a"]
    assert {record.why for record in skipped} == {why}
    assert restored.warnings


def test_slots_that_do_not_read_are_dropped_with_a_warning() -> None:
    state = owing().state() | {"tokens": {"a": ["x"]}}
    restored = dispatcher_of(limits={"a": 1}, start=2).load_state(state)
    assert any("owed to entries are dropped" in warning for warning in restored.warnings)
