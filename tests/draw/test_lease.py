"""Leases: blocks take and return permits, and nothing is lost to a cancellation."""

from __future__ import annotations

import asyncio
import logging

import pytest

from platoon.draw.permits import PermitPool
from platoon.rollout.lease import LeaseHooks, RolloutLease, lease_scope, rollout_lease


class Hand:
    """A clock moved by hand."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


async def settle() -> None:
    """Let every ready task run."""
    for _ in range(5):
        await asyncio.sleep(0)


class Member:
    """One rollout inside its block, ended by `end`."""

    def __init__(self, lease: RolloutLease, index: int) -> None:
        self.waited: float | None = None
        self.end = asyncio.Event()
        self.task = asyncio.create_task(self._run(lease, index))

    async def _run(self, lease: RolloutLease, index: int) -> None:
        async with lease.rollout(index) as waited:
            self.waited = waited
            await self.end.wait()


async def test_an_immediate_grant_waits_exactly_zero_and_a_wait_is_measured() -> None:
    clock, pool = Hand(), PermitPool(1)
    lease = RolloutLease(2, pool.reserve(1, rolling=True), hooks=LeaseHooks(clock=clock))
    first, second = Member(lease, 0), Member(lease, 1)
    await settle()
    assert (first.waited, second.waited, lease.unused) == (0.0, None, 0)
    first.end.set()
    await settle()
    assert pool.free == 1, "a permit that left its block is the pool's, not the lease's"
    lease.release()
    await settle()
    second.end.set()
    await second.task


async def test_blocks_wait_in_order_and_start_as_permits_come() -> None:
    clock, pool = Hand(), PermitPool(3)
    other = pool.reserve(2, rolling=True)
    lease = RolloutLease(3, pool.reserve(3, rolling=True), hooks=LeaseHooks(clock=clock))
    members = [Member(lease, index) for index in range(3)]
    await settle()
    assert [member.waited for member in members] == [0.0, None, None]
    clock.now = 5.0
    other.give_back(1)
    await settle()
    assert [member.waited for member in members] == [0.0, 5.0, None]
    clock.now = 7.0
    members[0].end.set()
    await settle()
    assert members[2].waited == 7.0
    for member in members:
        member.end.set()
    await settle()
    assert pool.free == 2


async def test_a_grant_in_the_instant_of_a_cancellation_passes_on() -> None:
    pool = PermitPool(3)
    other = pool.reserve(2, rolling=True)
    lease = RolloutLease(3, pool.reserve(3, rolling=True))
    members = [Member(lease, index) for index in range(3)]
    await settle()
    other.give_back(1)  # grants to member 1 ...
    members[1].task.cancel()  # ... which is cancelled before it runs
    await settle()
    assert members[1].task.cancelled()
    assert [member.waited is not None for member in members] == [True, False, True]
    again = Member(lease, 1)
    members[0].end.set()
    await settle()
    assert again.waited is not None, "a cancelled wait frees its index"
    lease.release()
    for member in (*members, again):
        member.end.set()
    await settle()
    assert pool.free == 2


async def test_a_cancelled_wait_leaves_the_queue() -> None:
    pool = PermitPool(3)
    other = pool.reserve(2, rolling=True)
    lease = RolloutLease(3, pool.reserve(3, rolling=True))
    members = [Member(lease, index) for index in range(3)]
    await settle()
    members[1].task.cancel()
    await settle()
    other.give_back(1)
    await settle()
    assert members[2].waited is not None
    lease.release()
    assert pool.free == 2


async def test_a_grant_after_a_cancellation_goes_to_the_next_block() -> None:
    pool = PermitPool(3)
    other = pool.reserve(2, rolling=True)
    lease = RolloutLease(3, pool.reserve(3, rolling=True))
    members = [Member(lease, index) for index in range(3)]
    await settle()
    members[1].task.cancel()
    other.give_back(1)  # before member 1 hears of its cancellation
    await settle()
    assert [member.waited is not None for member in members] == [True, False, True]
    lease.release()


async def test_release_frees_everything_once_and_lets_waiters_go_on(caplog: pytest.LogCaptureFixture) -> None:
    released: list[bool] = []
    pool = PermitPool(1)
    lease = RolloutLease(
        2, pool.reserve(1, rolling=True), name="draw 1-0", hooks=LeaseHooks(lambda: released.append(True))
    )
    members = [Member(lease, 0), Member(lease, 1)]
    await settle()
    with caplog.at_level(logging.WARNING):
        lease.release()
        lease()
        assert pool.free == 1, "permits are back before anyone else runs"
        await settle()
    assert released == [True]
    assert members[1].waited is not None
    for member in members:
        member.end.set()
    await settle()
    late = Member(RolloutLease(1), 0)
    await settle()
    assert late.waited == 0.0
    late.end.set()
    assert pool.free == 1, "blocks that end after the release return nothing twice"
    assert [record.message for record in caplog.records] == [
        "draw 1-0: rollout 1 was waiting when its group ended and holds no permit"
    ]


async def test_a_block_after_release_holds_nothing_and_is_warned_of_once(caplog: pytest.LogCaptureFixture) -> None:
    pool = PermitPool(2)
    lease = RolloutLease(2, pool.reserve(2, rolling=True), name="draw 1-0")
    lease.release()
    for index in (0, 1):
        async with lease.rollout(index) as waited:
            assert waited == 0.0
            assert pool.free == 2
    assert [record.message for record in caplog.records] == [
        "draw 1-0: rollout 0 began after its group ended and holds no permit"
    ]


@pytest.mark.parametrize("active", [True, False])
async def test_one_block_a_rollout(active: bool) -> None:
    pool = PermitPool(2)
    lease = RolloutLease(2, pool.reserve(2, rolling=True), active=active)
    with pytest.raises(IndexError, match="rollout 2 is not one of the group's 2"):
        lease.rollout(2)
    async with lease.rollout(0):
        pass
    with pytest.raises(RuntimeError, match="rollout 0 of the group already had its block"):
        async with lease.rollout(0):
            pass
    assert pool.free == (1 if active else 0), "an inactive lease holds all its permits to the end"


async def test_ready_does_not_yield_when_the_group_may_start() -> None:
    lease = RolloutLease(2, PermitPool(2).reserve(2, rolling=False))
    with pytest.raises(StopIteration):
        lease.ready().send(None)


async def test_ready_returns_when_startable_or_released() -> None:
    pool = PermitPool(2)
    first = pool.reserve(1, rolling=True)
    whole = RolloutLease(2, pool.reserve(2, rolling=False), active=False)
    waiting = asyncio.create_task(whole.ready())
    await settle()
    assert not waiting.done()
    first.close()
    await waiting
    stopped = RolloutLease(1, pool.reserve(1, rolling=True))
    waiting = asyncio.create_task(stopped.ready())
    await settle()
    assert not waiting.done()
    stopped.release()
    await waiting
    assert (stopped.closed, pool.queued) == (True, 0)


async def test_tasks_inherit_the_lease_and_it_can_be_hidden() -> None:
    lease = RolloutLease(1)

    async def seen() -> RolloutLease:
        return rollout_lease()

    with lease_scope(lease):
        assert await asyncio.create_task(seen()) is lease
        assert await asyncio.to_thread(rollout_lease) is lease
        with lease_scope(None):
            assert rollout_lease() is not lease
    outside = rollout_lease()
    assert outside.size == 0
    async with outside.rollout(99) as waited:
        assert waited == 0.0
