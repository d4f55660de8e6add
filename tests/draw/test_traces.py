"""Golden traces: what starts when, under limits and horizons."""

from __future__ import annotations

from platoon.draw.dispatcher import DispatchSettings
from platoon.draw.records import Draw
from platoon.draw.simulate import SimulatedRun, Simulation, simulate
from tests.draw.builders import bounds, in_listing_order, listing, names, start_all


def run(settings: DispatchSettings, labels: str, *, slow: float, steps: int) -> tuple[SimulatedRun, dict[str, int]]:
    def seconds(draw: Draw) -> list[float]:
        return [slow if draw.label == "s" else 1.0]

    dispatcher = in_listing_order(listing(labels), settings, steps=steps)
    done = simulate(dispatcher, Simulation(seconds, update_seconds=1.0, permits=100))
    counts = {"drawn": dispatcher.next_position, "parked": sum(dispatcher.waiting().values())}
    return done, counts


def started_at(done: SimulatedRun) -> dict[float, list[str]]:
    times: dict[float, list[str]] = {}
    for time, draw in done.started:
        times.setdefault(time, []).append(draw.task_id)
    return times


def test_one_batch_ahead_with_a_capped_slow_label() -> None:
    done, counts = run(bounds(2, 1, limits={"s": 1}), "sf", slow=3.0, steps=4)
    assert started_at(done) == {
        0.0: ["s0", "f1", "f3"],
        2.0: ["f5", "f7"],
        3.0: ["s2"],
        4.0: ["f9"],
        6.0: ["s4"],
    }
    assert [names(step.draws) for step in done.steps] == [["f1", "f3"], ["s0", "f5"], ["f7", "f9"], ["s2", "s4"]]
    assert counts == {"drawn": 10, "parked": 2}


def test_without_staleness_a_step_trains_what_was_drawn_for_it() -> None:
    done, _ = run(bounds(2, 0, limits={"s": 1}), "sf", slow=3.0, steps=3)
    assert [names(step.draws) for step in done.steps] == [["f1", "s0"], ["f3", "s2"], ["f5", "s4"]]
    assert started_at(done) == {0.0: ["s0", "f1"], 4.0: ["s2", "f3"], 8.0: ["s4", "f5"]}


def test_a_full_backlog_skips_positions() -> None:
    done, _ = run(bounds(2, 1, limits={"s": 1}, backlog=2), "sssf", slow=5.0, steps=3)
    assert started_at(done)[0.0] == ["s0", "f3", "f7"]
    assert [names(step.draws) for step in done.steps] == [["f3", "f7"], ["f11", "f15"], ["s0", "f19"]]


def test_a_small_group_never_overtakes_a_large_one_for_permits() -> None:
    sizes = {"l": 4, "s": 1}

    def seconds(draw: Draw) -> list[float]:
        return [float(member + 1) for member in range(draw.group_size)]

    def starts(rolling: bool) -> dict[float, list[str]]:
        dispatcher = in_listing_order(listing("sls"), bounds(3, None, sizes=sizes), steps=1)
        return started_at(simulate(dispatcher, Simulation(seconds, 1.0, permits=4, rolling=rolling)))

    assert starts(rolling=False) == {0.0: ["s0"], 1.0: ["l1"], 5.0: ["s2"]}
    assert starts(rolling=True) == {0.0: ["s0", "l1"], 1.0: ["s2"]}


def test_a_capped_label_keeps_a_place_for_each_running_group() -> None:
    dispatcher = in_listing_order(listing("sssf"), bounds(4, 1, limits={"s": 2}))
    first = start_all(dispatcher)
    assert names(first) == ["s0", "s1", "f3", "f7", "f11", "f15"], "two of the eight places are kept for s"
    for ended, successor in (("s0", "s2"), ("s1", "s4")):
        dispatcher.settled(next(draw.key for draw in first if draw.task_id == ended))
        assert names(start_all(dispatcher)) == [successor]
    assert dispatcher.in_use == 8


def test_a_draw_that_was_put_back_is_the_next_of_its_label() -> None:
    dispatcher = in_listing_order(listing("sf"), bounds(2, 3, limits={"s": 1}))
    started = start_all(dispatcher)
    dispatcher.put_back(started[0].key)
    assert names(start_all(dispatcher))[0] == "s0"
