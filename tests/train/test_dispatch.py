"""The dispatch driver with real tasks: order, failures, stops, and who may wait for what."""

from __future__ import annotations

import asyncio

import pytest

from platoon.draw.pool import PoolRow
from platoon.draw.records import Draw
from platoon.rollout.lease import RolloutLease, rollout_lease
from platoon.train.dispatch import DispatchHooks, DriverEnded, DriverOptions, Settled, StopRequested
from tests.train.dispatching import Gates, Hand, Output, Run, driver_of, driving, fates, journal, take, turns


async def test_surplus_groups_wait_in_completion_order() -> None:
    gates, heard = Gates(), journal()
    driver = driver_of(Run(batch_size=4, ahead=2, steps=3).dispatcher(), gates, hooks=heard.hooks())
    async with driving(driver):
        ended = [3, 0, 9, 1, 8, 2, 7, 4, 6, 5]
        for position in ended:
            gates.end(position)
            await turns()
        trained: list[int] = []
        for step in range(2):
            settled = [await driver.take() for _ in range(4)]
            trained += [group.draw.position for group in settled]
            driver.commit(fates(group.key for group in settled))
            driver.step_started(step + 1)
        assert trained == ended[:8]
        assert driver.ready == 2
        assert [group.draw.position for group in driver.state().kept] == ended[8:]
    assert sum(line.startswith("settle") for line in heard.lines) == 10
    assert sum(line.startswith("consumed") for line in heard.lines) == 8


async def test_a_group_that_returns_nothing_settles_as_failed_with_a_reason() -> None:
    gates = Gates()
    driver = driver_of(Run(batch_size=8, ahead=0, steps=1).dispatcher(), gates)
    async with driving(driver):
        for position in range(8):
            if position == 3:
                gates.end_with_nothing(position)
            else:
                gates.end(position)
        settled = [await driver.take() for _ in range(8)]
        failed = [group for group in settled if group.output is None]
        assert [group.draw.position for group in failed] == [3]
        assert failed[0].error == "the group's workflow returned nothing"
        assert all(group.error is None for group in settled if group not in failed)


@pytest.mark.parametrize(
    ("failure", "error"),
    [
        (ValueError("no such file"), "ValueError: no such file"),
        (TimeoutError("too slow"), "TimeoutError: too slow"),
        (asyncio.CancelledError(), "cancelled inside the group"),
    ],
)
async def test_what_escapes_from_a_workflow_fails_its_group_only(failure: BaseException, error: str) -> None:
    gates = Gates()
    driver = driver_of(Run().dispatcher(), gates)
    async with driving(driver):
        gates.fail(0, failure)
        settled = await driver.take()
        assert settled.output is None
        assert (settled.error or "").startswith(error)
        gates.end(1)
        assert (await driver.take()).output == ["p1"]


async def test_a_fatal_failure_ends_the_run_and_wakes_the_train_loop() -> None:
    gates = Gates()
    driver = driver_of(Run().dispatcher(), gates, options=DriverOptions(100, fatal=(LookupError,)))
    dispatching = asyncio.create_task(driver.run())
    waiting = asyncio.create_task(driver.take())
    await turns()
    gates.fail(0, LookupError("not prepared"))
    with pytest.raises(LookupError, match="not prepared"):
        await waiting
    with pytest.raises(LookupError, match="not prepared"):
        await dispatching
    assert sorted(gates.cancelled) == [1, 2, 3], "no group outlives its owner"


async def test_a_hook_that_raises_ends_the_run_and_not_the_wait() -> None:
    def refuse(settled: Settled[Output]) -> None:
        raise OSError("disk full")

    gates = Gates()
    driver = driver_of(Run().dispatcher(), gates, hooks=DispatchHooks(on_settle=refuse))
    dispatching = asyncio.create_task(driver.run())
    waiting = asyncio.create_task(driver.take())
    await turns()
    gates.end(2)
    with pytest.raises(DriverEnded) as ended:
        await waiting
    assert isinstance(ended.value.__cause__, OSError)
    with pytest.raises(OSError, match="disk full"):
        await dispatching
    with pytest.raises(DriverEnded):
        await driver.take()


async def test_nobody_waits_for_a_driver_that_does_not_run() -> None:
    driver = driver_of(Run().dispatcher(), Gates())
    with pytest.raises(DriverEnded, match="not running"):
        await driver.take()


async def test_nobody_waits_for_groups_that_cannot_come() -> None:
    gates = Gates()
    driver = driver_of(Run(steps=1, ahead=0).dispatcher(), gates)
    async with driving(driver):
        gates.end(0)
        gates.end(1)
        assert await take(driver, 2) == [0, 1]
        with pytest.raises(DriverEnded, match="no group runs and none can start"):
            await driver.take()


async def test_closing_cancels_running_groups_and_settles_none_of_them() -> None:
    gates, heard = Gates(), journal()
    driver = driver_of(Run().dispatcher(), gates, hooks=heard.hooks())
    async with driving(driver):
        gates.end(1)
        await turns()
    assert sorted(gates.cancelled) == [0, 2, 3]
    assert [line for line in heard.lines if line.startswith("settle")] == ["settle 1"]
    outstanding = [row[3] for row in driver.state().dispatch["outstanding"]]
    assert outstanding == [0, 1, 2, 3], "a cancelled group is still owed"
    assert driver.permits.in_use == 0


async def test_a_stop_ends_the_wait_and_starts_nothing_more() -> None:
    gates = Gates()
    driver = driver_of(Run().dispatcher(), gates)
    async with driving(driver):
        waiting = asyncio.create_task(driver.take())
        await turns()
        driver.request_stop()
        with pytest.raises(StopRequested):
            await waiting
        gates.end(0)
        await turns()
        with pytest.raises(StopRequested):
            await driver.take()
        assert gates.began == [0, 1, 2, 3]
        assert [group.draw.position for group in driver.state().kept] == [0]


async def test_a_stop_puts_back_the_draw_that_waits_for_permits() -> None:
    gates = Gates()
    driver = driver_of(Run(group_size=2).dispatcher(), gates, options=DriverOptions(3))
    async with driving(driver):
        assert gates.began == [0, 1], "the second group starts on its first permit"
        assert driver.dispatcher.running == 3
        driver.request_stop()
        await turns()
        assert driver.dispatcher.running == 2
        assert driver.state().dispatch["waiting"] == {"x": [[1, 2]]}
        assert driver.permits.queued == 1, "group 1 still waits for its second permit"


async def test_a_stop_after_an_update_lets_the_step_complete() -> None:
    gates = Gates()
    options = DriverOptions(1, finish_step_on_stop=True)
    driver = driver_of(Run(batch_size=4, ahead=0, steps=2).dispatcher(), gates, options=options)
    async with driving(driver):
        gates.end(0)
        assert await take(driver, 1) == [0]
        driver.request_stop()
        with pytest.raises(StopRequested):
            await driver.take()
        for position in (1, 2, 3):
            await turns()
            gates.end(position)
            assert (await driver.take(interruptible=False)).draw.position == position
        assert gates.began == [0, 1, 2, 3]


async def test_permits_bound_the_rollouts_and_immediate_grants_wait_exactly_zero() -> None:
    gates, clock = Gates(), Hand()
    driver = driver_of(Run(group_size=3, ahead=2).dispatcher(), gates, options=DriverOptions(4, clock=clock))
    async with driving(driver):
        assert gates.waits == {0: [0.0, 0.0, 0.0], 1: [0.0]}
        clock.now = 8.0
        gates.end(0)
        await turns()
        assert gates.waits[1] == [0.0, 8.0, 8.0]
        for position in range(1, 6):
            gates.end(position)
            await turns()
        assert gates.most_rollouts == 4


async def test_whole_groups_hold_their_permits_to_the_end() -> None:
    gates = Gates()
    driver = driver_of(Run(group_size=3, ahead=2).dispatcher(), gates, options=DriverOptions(5, rolling=False))
    async with driving(driver):
        assert (gates.began, driver.permits.in_use) == ([0], 3)
        gates.end(0)
        await turns()
        assert gates.began == [0, 1]


async def test_whole_groups_return_nothing_when_a_rollout_ends() -> None:
    over = asyncio.Event()

    async def workflow(draw: Draw, row: PoolRow, lease: RolloutLease) -> Output | None:
        async with lease.rollout(0):
            pass
        await over.wait()
        return ["done"]

    for rolling, held in ((False, 2), (True, 1)):
        options = DriverOptions(2, rolling=rolling)
        driver = driver_of(Run(group_size=2, batch_size=1, ahead=0).dispatcher(), workflow, options=options)
        async with driving(driver):
            assert driver.permits.in_use == held
            over.set()
            await driver.take()
            assert driver.permits.in_use == 0
        over.clear()


async def test_a_group_that_gives_up_its_lease_early_lets_the_next_one_start() -> None:
    over = asyncio.Event()
    began: list[int] = []

    async def workflow(draw: Draw, row: PoolRow, lease: RolloutLease) -> Output | None:
        began.append(draw.position)
        lease()
        await over.wait()
        return ["done"]

    driver = driver_of(Run(batch_size=1, ahead=2, limits={"s": 1}, labels="s").dispatcher(), workflow)
    async with driving(driver):
        assert began == [0, 1, 2]
        over.set()
        await driver.take()


async def test_slots_and_permits_are_free_before_a_group_settles() -> None:
    seen: list[tuple[int, int]] = []

    def look(settled: Settled[Output]) -> None:
        seen.append((driver.permits.in_use, driver.dispatcher.active()["s"]))

    gates = Gates()
    dispatcher = Run(limits={"s": 1}, labels="s", ahead=0).dispatcher()
    driver = driver_of(dispatcher, gates, hooks=DispatchHooks(on_settle=look))
    async with driving(driver):
        gates.end(0)
        await driver.take()
        await turns()
        assert gates.began == [0, 1], "the label's next group starts when its slot is free"
    assert seen == [(0, 0)]


async def test_hooks_hear_everything_in_order() -> None:
    gates, heard = Gates(), journal()
    driver = driver_of(Run(ahead=0, steps=2).dispatcher(), gates, hooks=heard.hooks())
    async with driving(driver):
        gates.end(1)
        gates.end(0)
        groups = [await driver.take(), await driver.take()]
        driver.commit({groups[0].key: "consumed", groups[1].key: "stale"})
        driver.step_started(7)
        await turns()
        gates.end(2)
        gates.end(3)
        await turns()
    assert heard.lines[:6] == ["draw 0", "draw 1", "settle 1", "settle 0", "consumed 1-1", "stale 1-0"]
    assert [draw.version for draw in heard.draws] == [0, 0, 7, 7]
    assert heard.events[0] == {
        "event": "draw",
        "start": 1,
        "seq": 0,
        "task_id": "t0",
        "position": 0,
        "version": 0,
        "sampler": "auto",
        "reason": "order",
    }
    assert heard.events[3] == {"event": "fate", "start": 1, "seq": 0, "fate": "stale"}


async def test_a_workflow_finds_its_lease() -> None:
    async def workflow(draw: Draw, row: PoolRow, lease: RolloutLease) -> Output | None:
        assert rollout_lease() is lease
        async with rollout_lease().rollout(0) as waited:
            return [str(waited)]

    driver = driver_of(Run().dispatcher(), workflow)
    async with driving(driver):
        assert (await driver.take()).output == ["0.0"]
    assert rollout_lease().size == 0


async def test_blocked_shares_and_counts_follow_the_clock() -> None:
    gates, clock = Gates(), Hand()
    driver = driver_of(Run(group_size=2, ahead=0, steps=1).dispatcher(), gates, options=DriverOptions(3, clock=clock))
    async with driving(driver):
        clock.now = 4.0
        driver.in_flight()
        assert driver.blocked_shares() == {
            "dispatch/blocked_share/permits": 0.0,
            "dispatch/blocked_share/horizon": 0.0,
            "dispatch/blocked_share/labels": 0.0,
            "dispatch/blocked_share/plan": 1.0,
            "dispatch/blocked_share/sampler": 0.0,
        }
        gates.end(0)
        await turns()
        clock.now = 5.0
        gates.end(1)
        await take(driver, 2)
        clock.now = 8.0
        counts = driver.in_flight()
        assert counts["rollouts_in_flight_max"] == 3.0
        assert counts["rollouts_in_flight_mean"] == pytest.approx(2 / 4)
        assert counts["groups_in_flight_mean"] == pytest.approx(1 / 4)
        assert counts["permits_held_mean"] == pytest.approx(2 / 4)
        assert (counts["trainer_queue_dequeues"], counts["trainer_queue_ready_fraction"]) == (2.0, 1.0)


async def test_waiting_for_permits_is_a_reason_of_its_own() -> None:
    gates, clock = Gates(), Hand()
    driver = driver_of(Run(group_size=2, ahead=2).dispatcher(), gates, options=DriverOptions(2, clock=clock))
    async with driving(driver):
        clock.now = 3.0
        gates.end(0)
        await turns()
        clock.now = 6.0
        assert driver.blocked_shares()["dispatch/blocked_share/permits"] == 1.0


async def test_rollouts_that_outlive_their_groups_are_warned_of_once(caplog: pytest.LogCaptureFixture) -> None:
    over = asyncio.Event()
    left: list[asyncio.Task[None]] = []

    async def rollout(lease: RolloutLease) -> None:
        async with lease.rollout(0):
            await over.wait()

    async def workflow(draw: Draw, row: PoolRow, lease: RolloutLease) -> Output:
        left.append(asyncio.create_task(rollout(lease)))
        await turns(2)
        return ["left running"]

    driver = driver_of(Run(ahead=1).dispatcher(), workflow, options=DriverOptions(1))
    async with driving(driver):
        await take(driver, 2)
        await turns()
        assert driver.traffic.rollouts.value == len(left) == 4
        over.set()
        await asyncio.gather(*left)
        assert driver.traffic.rollouts.value == 0
    said = [record.getMessage() for record in caplog.records if "more rollouts run" in record.getMessage()]
    assert said == ["more rollouts run than max_concurrent_rollouts: 1 allows; await each in its block"]


async def test_draws_that_a_full_backlog_skips_are_warned_of_once_a_label(caplog: pytest.LogCaptureFixture) -> None:
    gates = Gates()
    run = Run(tasks=60, batch_size=1, ahead=3, steps=20, limits={"s": 1}, labels="sssssssf")
    driver = driver_of(run.dispatcher(), gates)
    async with driving(driver):
        assert gates.began == [0, 7, 15], "one running, four waiting, and a place kept for the next of s"
        for position in sorted(gates.open):
            gates.end(position)
        await turns()
    said = [record.getMessage() for record in caplog.records if "skipped" in record.getMessage()]
    assert len(said) == 1
    assert said[0].startswith("label 's': 4 draws wait for it already")
