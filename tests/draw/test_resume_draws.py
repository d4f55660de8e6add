"""Going on from a saved dispatcher: the golden case, lost tasks, and states that do not read."""

from __future__ import annotations

import json
from typing import Any

import pytest

from platoon.draw.dispatcher import Dispatcher
from platoon.draw.pool import PoolRow, TaskPool
from platoon.draw.records import Drawn, Fated, Key, Wait
from tests.draw.builders import bounds, in_listing_order, listing, names, start_all


def interrupted() -> Dispatcher:
    """s0 runs, s2 is parked, f1 and f3 are settled and taken by a step that has not committed."""
    dispatcher = in_listing_order(listing("sf"), bounds(2, 1, limits={"s": 1}))
    assert names(start_all(dispatcher)) == ["s0", "f1", "f3"]
    for key in ((1, 1), (1, 3)):
        dispatcher.settled(key)
        dispatcher.dequeued(key)
    return dispatcher


def saved(dispatcher: Dispatcher, **changes: Any) -> dict[str, Any]:
    state: dict[str, Any] = json.loads(json.dumps(dispatcher.state(), allow_nan=False))
    return {**state, **changes}


def successor() -> Dispatcher:
    return in_listing_order(listing("sf"), bounds(2, 1, limits={"s": 1}), start=2)


def test_the_saved_state_golden() -> None:
    assert saved(interrupted()) == {
        "format": 2,
        "start": 1,
        "sampler": "auto",
        "fingerprint": {},
        "next_position": 4,
        "outstanding": [[1, 0, "s0", 0], [1, 1, "f1", 1], [1, 2, "s2", 2], [1, 3, "f3", 3]],
        "drawn": [[1, 0, 0, "auto"], [1, 1, 1, "auto"], [1, 2, 2, "auto"], [1, 3, 3, "auto"]],
        "waiting": {"s": [[1, 2]]},
        "tokens": {},
        "fallback_slots": [],
        "samplers": {
            "run": {"name": "auto", "class": "platoon.draw.order:ListingOrder", "decisions": 4},
            "entries": {},
        },
        "kept": {"groups": [[1, 1], [1, 3]]},
    }


def test_resume_golden() -> None:
    dispatcher = successor()
    restored = dispatcher.load_state(saved(interrupted()), [(1, 1), (1, 3)])
    assert restored.kept == ((1, 1), (1, 3))
    assert [record.event() for record in restored.records] == [
        {
            "event": "draw",
            "start": 2,
            "seq": seq,
            "task_id": task,
            "position": position,
            "version": 0,
            "sampler": "auto",
            "reason": "reissue",
            "reissues": old,
        }
        for seq, task, position, old in ((0, "s0", 0, [1, 0]), (1, "s2", 2, [1, 2]))
    ]
    started = start_all(dispatcher)
    assert [(draw.key, draw.position) for draw in started] == [((2, 0), 0)]
    assert dispatcher.choose() == Wait("horizon")
    again = saved(dispatcher)
    assert (again["next_position"], again["waiting"], again["kept"]) == (
        4,
        {"s": [[2, 1]]},
        {"groups": [[1, 1], [1, 3]]},
    )
    assert again["outstanding"] == [[1, 1, "f1", 1], [1, 3, "f3", 3], [2, 0, "s0", 0], [2, 1, "s2", 2]]


def test_the_next_batch_goes_on_where_the_order_stood() -> None:
    dispatcher = successor()
    dispatcher.load_state(saved(interrupted()), [(1, 1), (1, 3)])
    start_all(dispatcher)
    for key in ((1, 1), (1, 3)):
        dispatcher.dequeued(key)
    dispatcher.commit({(1, 1): "consumed", (1, 3): "stale"})
    assert saved(dispatcher)["kept"] is None
    dispatcher.step_started()
    assert names(start_all(dispatcher)) == ["f5", "f7"]


def test_a_kept_group_that_does_not_read_back_is_rolled_out_again() -> None:
    dispatcher = successor()
    restored = dispatcher.load_state(saved(interrupted()), [(1, 3)])
    drawn = [record.draw for record in restored.records if isinstance(record, Drawn)]
    assert [(draw.task_id, draw.reissues) for draw in drawn] == [("s0", (1, 0)), ("f1", (1, 1)), ("s2", (1, 2))]
    assert names(start_all(dispatcher)) == ["s0", "f1"]


def test_tasks_that_left_the_pool_are_lost_kept_groups_included() -> None:
    pool = TaskPool([row for row in listing("sf").rows if row.task_id not in ("f1", "s2")])
    dispatcher = in_listing_order(pool, bounds(2, 1, limits={"s": 1}), start=2)
    restored = dispatcher.load_state(saved(interrupted()), [(1, 1), (1, 3)])
    assert restored.kept == ((1, 3),)
    assert [record for record in restored.records if isinstance(record, Fated)] == [
        Fated((1, 1), "lost"),
        Fated((1, 2), "lost"),
    ]


def test_a_repeated_task_is_found_at_its_own_row() -> None:
    rows = [PoolRow("same", columns={"n": "0"}), PoolRow("same", columns={"n": "1"}), PoolRow("other")]
    first = in_listing_order(TaskPool(rows), bounds(3, 0))
    assert [draw.row_index for draw in start_all(first)] == [0, 1, 2]
    second = in_listing_order(TaskPool([*rows, PoolRow("new")]), bounds(3, 0), start=2)
    second.load_state(saved(first))
    assert [draw.row_index for draw in start_all(second)] == [0, 1, 2]
    moved = in_listing_order(TaskPool([PoolRow("other"), *rows[:2]]), bounds(3, 0), start=2)
    moved.load_state(saved(first))
    assert [draw.row_index for draw in start_all(moved)] == [1, 1, 0]


def test_format_1_is_read() -> None:
    state = saved(interrupted(), format=1)
    for key in ("drawn", "tokens", "fallback_slots", "samplers"):
        del state[key]
    dispatcher = successor()
    dispatcher.load_state(state, [(1, 1), (1, 3)])
    assert names(start_all(dispatcher)) == ["s0"]
    assert dispatcher.next_position == 4


def test_unreadable_drawn_rows_alone_are_dropped_with_a_warning() -> None:
    dispatcher = successor()
    restored = dispatcher.load_state(saved(interrupted(), drawn=[[1, 0, "x", "auto"]]), [(1, 1), (1, 3)])
    assert "drawn row" in restored.warnings[0]
    assert names(start_all(dispatcher)) == ["s0"]


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"format": 3}, "format is 3"),
        ({"surprise": 1}, "unknown surprise"),
        ({"next_position": -1}, "next_position is -1"),
        ({"next_position": True}, "next_position is True"),
        ({"outstanding": [[1, 0, "s0"]]}, "outstanding is not a list of rows of 4"),
        ({"outstanding": [[1, 0, "s0", 0], [1, 0, "s0", 0]]}, "there twice"),
        ({"waiting": {"s": [[9, 9]]}}, "are not outstanding"),
        ({"start": 2}, "must be later"),
    ],
)
def test_a_state_that_does_not_read_changes_nothing(changes: dict[str, Any], problem: str) -> None:
    dispatcher = successor()
    before = dispatcher.state()
    with pytest.raises(ValueError, match=problem):
        dispatcher.load_state(saved(interrupted(), **changes), [(1, 1)])
    assert dispatcher.state() == before
    dispatcher.seek(4)
    assert names(start_all(dispatcher)) == ["s4", "f5", "f7"]


def test_a_missing_part_is_named() -> None:
    state = saved(interrupted())
    del state["waiting"]
    with pytest.raises(ValueError, match="missing waiting"):
        successor().load_state(state)


def test_loading_after_the_first_draw_is_refused() -> None:
    dispatcher = successor()
    start_all(dispatcher)
    with pytest.raises(RuntimeError, match="has not drawn"):
        dispatcher.load_state(saved(interrupted()))
    with pytest.raises(RuntimeError, match="has not drawn"):
        dispatcher.seek(3)


def test_events_out_of_order_are_refused() -> None:
    dispatcher = interrupted()
    unknown: Key = (1, 9)
    with pytest.raises(ValueError, match="not running"):
        dispatcher.settled(unknown)
    with pytest.raises(ValueError, match="not waiting to be taken"):
        dispatcher.dequeued((1, 1))
    with pytest.raises(ValueError, match="no step took it"):
        dispatcher.commit({(1, 0): "consumed"})
    with pytest.raises(RuntimeError, match="without a fate"):
        dispatcher.step_started()
