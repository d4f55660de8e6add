"""Kill the driver anywhere and go on from its state: every position is trained exactly once."""

from __future__ import annotations

import asyncio
import gc
import random
import tracemalloc
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from platoon.draw.pool import PoolRow
from platoon.draw.records import Draw, Key
from platoon.rollout.lease import RolloutLease
from platoon.stats.schema import Fate
from platoon.train.dispatch import DispatchDriver, DispatchHooks, DriverOptions, DriverState, KeptGroup
from tests.train.dispatching import Gates, Output, Run, driver_of, driving, fates, journal, through_json, turns

RUN = Run(ahead=2, batch_size=2, group_size=2, steps=6, labels="ssf", limits={"s": 2})


def kept_of(state: DriverState[Output]) -> list[KeptGroup[Output]]:
    """What a checkpoint's file of kept groups gives back."""
    return [
        KeptGroup(
            group.key, group.output, group.error, group.seconds, group.draw.version, group.draw.reason, group.draw.score
        )
        for group in state.kept
    ]


async def test_a_state_between_commit_and_the_next_step_excludes_what_was_trained() -> None:
    gates = Gates()
    driver = driver_of(Run().dispatcher(), gates)
    async with driving(driver):
        for position in (0, 2, 1):
            gates.end(position)
            await turns()
        taken = [await driver.take(), await driver.take()]
        before = driver.state()
        driver.commit(fates(group.key for group in taken))
        state = driver.state()
    assert [group.draw.position for group in before.kept] == [0, 2, 1], "a step in progress has trained nothing yet"
    assert [group.draw.position for group in state.kept] == [1]
    assert state.dispatch["kept"] == {"groups": [[1, 1]]}
    assert [row[3] for row in state.dispatch["outstanding"]] == [1, 3]


async def test_kept_groups_come_first_under_their_old_keys_and_are_not_rolled_out_again() -> None:
    gates = Gates()
    first = driver_of(Run().dispatcher(), gates)
    async with driving(first):
        first.dispatcher.version = 3
        gates.fail(2, ValueError("bad"))
        await turns()
        gates.end(0, ["old"])
        await turns()
        state = first.state()
    again, heard = Gates(), journal()
    second = driver_of(Run().dispatcher(start=2), again, hooks=heard.hooks())
    assert second.load_state(through_json(state.dispatch), kept_of(state)) == ()
    assert heard.lines == ["draw 1", "draw 3"]
    async with driving(second):
        failed, old = await second.take(), await second.take()
        assert (failed.key, failed.output, failed.error) == ((1, 2), None, "ValueError: bad")
        assert (old.key, old.output, old.draw.version) == ((1, 0), ["old"], 0)
        assert again.began == [1, 3]
        second.commit(fates([failed.key, old.key]))
        second.step_started(1)
        await turns()
        assert again.began == [1, 3, 4, 5]
    assert heard.lines == ["draw 1", "draw 3", "consumed 1-2", "consumed 1-0", "draw 4", "draw 5"]


async def test_a_state_that_does_not_read_leaves_the_driver_usable() -> None:
    driver = driver_of(Run().dispatcher(start=2), Gates())
    with pytest.raises(ValueError, match="format"):
        driver.load_state({"format": 9})
    driver.dispatcher.seek(6)
    gates = Gates()
    driver = driver_of(driver.dispatcher, gates)
    async with driving(driver):
        assert gates.began == [6, 7, 8, 9]


def held_by_platoon() -> int:
    """Bytes allocated by the rooms under test; what other threads of the process do does not count."""
    rooms = [tracemalloc.Filter(True, f"*/platoon/{room}/*") for room in ("draw", "train", "rollout")]
    return sum(one.size for one in tracemalloc.take_snapshot().filter_traces(rooms).statistics("filename"))


async def test_a_thousand_steps_leave_memory_flat() -> None:
    async def workflow(draw: Draw, row: PoolRow, lease: RolloutLease) -> Output | None:
        async with lease.rollout(0):
            return [row.task_id * 200]

    driver = driver_of(Run(tasks=50, ahead=1, steps=1_001, limits={"a": 1}, labels="ab").dispatcher(), workflow)
    async with driving(driver):
        used: list[int] = []
        for step in range(1_000):
            groups = [await driver.take() for _ in range(2)]
            driver.commit(fates(group.key for group in groups))
            driver.step_started(step + 1)
            del groups
            if step == 200:
                tracemalloc.start()
            if step % 100 == 0 and step > 200:
                driver.in_flight()
                gc.collect()
                used.append(held_by_platoon())
        tracemalloc.stop()
        assert max(used) - used[0] < 5_000, "what was trained is forgotten"
        assert len(driver.state().dispatch["outstanding"]) <= 2 + 4 * 2 + 4


class Ledger:
    """The fate of each position over all starts of a run."""

    def __init__(self) -> None:
        self.position: dict[Key, int] = {}
        self.fate: dict[int, Fate] = {}

    def hooks(self) -> DispatchHooks[Output]:
        def on_draw(key: Key, position: int) -> None:
            assert key not in self.position
            self.position[key] = position

        def on_fate(key: Key, fate: Fate) -> None:
            position = self.position[key]
            assert position not in self.fate, f"position {position} has two fates"
            self.fate[position] = fate

        return DispatchHooks(on_draw=lambda draw: on_draw(draw.key, draw.position), on_fate=on_fate)


async def train(choose: Callable[[int], int], permits: int) -> Ledger:
    """Train RUN's steps; `choose(n)` picks what happens next and when the process dies."""
    ledger, done, start = Ledger(), 0, 0
    saved: tuple[DriverState[Output], int] | None = None
    while done < RUN.steps:
        start += 1
        gates = Gates()
        driver: DispatchDriver[Output] = driver_of(
            RUN.dispatcher(start, done), gates, hooks=ledger.hooks(), options=DriverOptions(permits)
        )
        if saved is not None:
            driver.load_state(through_json(saved[0].dispatch), kept_of(saved[0]))
        async with driving(driver):
            done = await until_killed(driver, gates, choose, done)
            saved = driver.state(), done
    return ledger


async def until_killed(driver: DispatchDriver[Output], gates: Gates, choose: Callable[[int], int], done: int) -> int:
    taken: list[Key] = []
    while done < RUN.steps:
        await turns(12)
        event = choose(12)
        if event == 0:
            return done
        if event < 4 and driver.ready and len(taken) < RUN.batch_size:
            taken.append((await driver.take()).key)
        elif gates.open:
            position = sorted(gates.open)[choose(len(gates.open))]
            if event == 4:
                gates.fail(position, RuntimeError("unlucky"))
            else:
                gates.end(position)
        if len(taken) == RUN.batch_size:
            driver.commit(fates(taken))
            taken, done = [], done + 1
            if choose(6) == 0:
                return done
            driver.step_started(done)
    return done


@given(st.integers(0, 2**32), st.integers(2, 9))
@settings(max_examples=30, deadline=None)
def test_every_position_is_trained_once_wherever_the_run_is_killed(seed: int, permits: int) -> None:
    ledger = asyncio.run(train(random.Random(seed).randrange, permits))
    trained = [position for position, fate in ledger.fate.items() if fate == "consumed"]
    assert len(trained) == RUN.steps * RUN.batch_size
    owed = set(ledger.position.values()) - ledger.fate.keys()
    assert sorted([*ledger.fate, *owed]) == list(range(max(ledger.position.values()) + 1))
