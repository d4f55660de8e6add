"""The limit of rollouts that start at once."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from platoon.stats.tables import read_table
from platoon.train.run import train_run
from platoon.train.starts import StartLimit, StartSlot
from tests.train.dispatching import Hand, turns
from tests.train.running import loaded, run_dir


class Starter:
    """Rollouts that hold a slot until the test lets them call their model, or end."""

    def __init__(self, limit: StartLimit) -> None:
        self.limit = limit
        self.slots: list[StartSlot] = []
        self.ends: list[asyncio.Event] = []
        self.started = asyncio.Event()

    def start(self) -> asyncio.Task[None]:
        async def rollout() -> None:
            async with self.limit.slot() as slot:
                end = asyncio.Event()
                self.slots.append(slot)
                self.ends.append(end)
                self.started.set()
                await end.wait()

        return asyncio.create_task(rollout())


async def test_slots_go_first_come_first_served_and_return_once() -> None:
    hand = Hand()
    starter = Starter(StartLimit(2, 1e9, hand))
    tasks = [starter.start() for _ in range(4)]
    await turns()
    assert [slot.waited for slot in starter.slots] == [0.0, 0.0]
    hand.now = 3.0
    starter.slots[0].first_call()
    starter.slots[0].first_call()
    await turns()
    assert [slot.waited for slot in starter.slots] == [0.0, 0.0, 3.0]
    starter.ends[1].set()
    await turns()
    assert len(starter.slots) == 4
    for end in starter.ends:
        end.set()
    await asyncio.gather(*tasks)
    metrics = starter.limit.window()
    assert metrics["start_limit/releases/first_call"] == 1.0
    assert metrics["start_limit/releases/end"] == 3.0
    assert metrics["start_limit/wait_seconds_max"] == 3.0
    assert metrics["start_limit/waiting_mean"] == 2.0


async def test_training_and_evaluation_share_the_slots_and_are_counted_apart() -> None:
    hand = Hand()
    limit = StartLimit(1, 1e9, hand)
    async with limit.slot() as slot:
        waiting = asyncio.create_task(hold(limit))
        await turns()
        hand.now = 4.0
        slot.first_call()
        await waiting
    evaluation, training = limit.window("eval"), limit.window()
    assert (training["start_limit/wait_seconds_max"], evaluation["start_limit/wait_seconds_max"]) == (0.0, 4.0)
    assert (training["start_limit/starting_mean"], evaluation["start_limit/waiting_mean"]) == (1.0, 1.0)
    assert evaluation["start_limit/releases/end"] == training["start_limit/releases/first_call"] == 1.0
    assert "start_limit/wait_seconds_max" not in limit.window("eval")


async def hold(limit: StartLimit) -> None:
    async with limit.slot("eval"):
        pass


async def test_a_cancelled_wait_passes_its_slot_on() -> None:
    starter = Starter(StartLimit(1, 1e9))
    tasks = [starter.start() for _ in range(3)]
    await turns()
    starter.slots[0].first_call()
    tasks[1].cancel()
    await turns()
    assert len(starter.slots) == 2
    tasks[2].cancel()
    starter.ends[0].set()
    await asyncio.gather(*tasks, return_exceptions=True)
    assert starter.limit.window()["start_limit/releases/cancelled"] == 1.0
    async with starter.limit.slot() as slot:
        assert slot.waited == 0.0


async def test_a_rollout_that_never_calls_gives_its_slot_back_in_time(caplog: pytest.LogCaptureFixture) -> None:
    limit = StartLimit(1, 0.0)
    first, second = Starter(limit), Starter(limit)
    tasks = [first.start(), second.start()]
    await asyncio.wait_for(second.started.wait(), 10)
    assert "made no model call" in caplog.text
    for starter in (first, second):
        starter.ends[0].set()
    await asyncio.gather(*tasks)


async def test_no_more_rollouts_start_at_once_in_a_run(tmp_path: Path) -> None:
    assert (await train_run(loaded(tmp_path, train__max_starting_rollouts=2))).status == "finished"
    metrics = read_table(run_dir(tmp_path), "metrics")
    calls = metrics.filter(metrics["key"] == "rollout_client/start_limit/releases/first_call")["value"].sum()
    assert calls >= 6 * 3 * 4
