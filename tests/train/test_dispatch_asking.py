"""The driver around adaptive samplers and admission rules."""

from __future__ import annotations

from dataclasses import replace

import pytest

from platoon.draw.admission.gate import Ruling
from platoon.draw.dispatcher import Dispatcher, DispatchSettings
from platoon.draw.pool import PoolRow, TaskPool
from platoon.draw.samplers.sampling import build_sampling
from platoon.draw.samplers.settings import EntrySampling, SamplingSettings
from platoon.train.dispatch import DispatchHooks, DriverOptions, Settled
from tests.train.dispatching import Gates, Output, driver_of, driving, journal, turns

LISTENER = "tests.draw.own_samplers:Listener"


def adaptive(group_size: int = 2, cap: int | None = None, ahead: int = 0) -> Dispatcher:
    pool = TaskPool([PoolRow(f"t{index}", "default") for index in range(9)])
    run = SamplingSettings(2, (EntrySampling("default", group_size=group_size),), LISTENER)
    bounds = DispatchSettings(2, group_size, ahead, cap=cap)
    return Dispatcher(pool, build_sampling(run, pool), bounds, start=1, steps_left=3)


async def test_statistics_are_brought_up_to_date_before_each_decision() -> None:
    heard: list[str] = []
    hooks = DispatchHooks[Output](
        on_draw=lambda draw: heard.append("draw"), before_decision=lambda: heard.append("ask")
    )
    gates = Gates()
    driver = driver_of(adaptive(), gates, hooks=hooks)
    async with driving(driver):
        assert heard == ["ask", "draw", "ask", "draw"]
        assert driver.traffic.sampled({})["sampler/draws/new"] == 2.0
        for position in sorted(gates.open):
            gates.end(position)
        await turns()


async def test_a_decision_comes_when_its_permits_do() -> None:
    gates, log = Gates(), journal()
    driver = driver_of(adaptive(), gates, hooks=log.hooks(), options=DriverOptions(2, rolling=False))
    async with driving(driver):
        assert log.lines == ["draw 0"], "the second is not decided before it can start"
        gates.end(0)
        await turns()
        assert log.lines == ["draw 0", "settle 0", "draw 1"]
        gates.end(1)
        await turns()


async def test_a_stop_while_permits_are_awaited_decides_nothing() -> None:
    gates, log = Gates(), journal()
    driver = driver_of(adaptive(), gates, hooks=log.hooks(), options=DriverOptions(2, rolling=False))
    async with driving(driver):
        driver.request_stop()
        await turns()
        assert driver.permits.queued == 0
        assert driver.dispatcher.next_position == 1
        assert driver.dispatcher.in_use == 1


async def test_rejected_groups_are_replaced_and_bring_markers() -> None:
    log = journal()

    def admit(settled: Settled[Output]) -> Ruling:
        good = settled.output is not None and settled.draw.position >= 2
        return Ruling(good, "good" if good else "bad", "mine")

    hooks = replace(log.hooks(), admit=admit, emptied=lambda output: ([], bool(output)))
    gates = Gates()
    driver = driver_of(adaptive(cap=6), gates, hooks=hooks)
    async with driving(driver):
        gates.end(0)
        await turns()
        assert sorted(gates.open) == [1, 2], "another group runs in the place of the rejected one"
        gates.end_with_nothing(1)
        gates.end(2)
        await turns()
        assert sorted(gates.open) == [], "a failed group keeps its place until its marker is taken"
        first = await driver.take(fills=lambda settled: not settled.marker)
        assert (first.marker, first.output, first.ruling) == (True, [], Ruling(False, "bad", "mine"))
        second = await driver.take(fills=lambda settled: not settled.marker)
        assert (second.marker, second.output) == (True, None)
        await turns()
        assert sorted(gates.open) == [3]
        third = await driver.take(fills=lambda settled: not settled.marker)
        assert (third.marker, third.output) == (False, ["p2"])
        assert driver.state().dispatch["outstanding"] == [
            [1, 2, third.draw.task_id, 2],
            [1, 3, driver.dispatcher.draw((1, 3)).task_id, 3],
        ]
        gates.end(3)
        await turns()
    fates = [(event["fate"], event["admission"]) for event in log.events if event["event"] == "fate"]
    assert fates == [("rejected", "bad"), ("failed", "bad")]


async def test_a_step_that_counts_ten_batches_and_fills_none_is_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    hooks = DispatchHooks[Output](admit=lambda settled: Ruling(False, "bad", "mine"))
    gates = Gates()
    driver = driver_of(adaptive(cap=45), gates, hooks=hooks)
    async with driving(driver):
        while driver.dispatcher.counted < 44:
            gates.end(min(gates.open))
            await turns()
            await driver.take(fills=lambda settled: not settled.marker)
        for position in sorted(gates.open):
            gates.end(position)
        await turns()
    said = [record.getMessage().partition(";")[0] for record in caplog.records if "counted" in record.getMessage()]
    assert said == [f"this step counted {count} groups and has 0 of the 2 it trains" for count in (20, 40)]
