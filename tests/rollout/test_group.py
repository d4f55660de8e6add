from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from platoon.config import StragglerPolicy
from platoon.rollout.episode import Episode
from platoon.rollout.group import run_group
from platoon.rollout.lease import RolloutLease, lease_scope, rollout_lease
from platoon.rollout.outcome import Outcome

NEVER = StragglerPolicy(timeout_seconds=1e9)


def scored(reward: float) -> Episode:
    return Episode.failed("completed", Outcome("scored", {"reward": reward}))


async def member(index: int) -> Episode:
    return scored(index)


async def test_every_member_settles_in_order() -> None:
    episodes = await run_group(member, 4)
    assert [episode.outcome.reward for episode in episodes] == [0, 1, 2, 3]


async def test_members_run_at_the_same_time() -> None:
    together = asyncio.Barrier(4)

    async def meet(index: int) -> Episode:
        await together.wait()
        return scored(index)

    assert len(await run_group(meet, 4)) == 4


async def test_a_member_that_returns_nothing_or_raises_settles_with_a_reason() -> None:
    async def odd(index: int) -> Any:
        if index == 3:
            return None
        if index == 5:
            raise OSError("no memory")
        if index == 6:
            raise asyncio.CancelledError
        return scored(index)

    episodes = await asyncio.wait_for(run_group(odd, 8), 30)
    assert len(episodes) == 8
    failed = {index: episodes[index] for index in (3, 5, 6)}
    assert {episode.disposition for episode in failed.values()} == {"worker_launch_failed"}
    assert all(episode.outcome.status == "error" and episode.outcome.reward is None for episode in failed.values())
    assert "NoneType" in str(failed[3].error)
    assert "no memory" in str(failed[5].error)
    assert [episode.outcome.reward for i, episode in enumerate(episodes) if i not in failed] == [0, 1, 2, 4, 7]


async def test_cancelling_the_group_cancels_and_awaits_every_member() -> None:
    running = asyncio.Semaphore(0)
    ended: list[int] = []

    async def slow(index: int) -> Episode:
        running.release()
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            ended.append(index)
        raise AssertionError

    group = asyncio.create_task(run_group(slow, 3))
    for _ in range(3):
        await running.acquire()
    group.cancel()
    with pytest.raises(asyncio.CancelledError):
        await group
    assert sorted(ended) == [0, 1, 2]


async def test_stragglers_are_cut_once_the_quorum_settled() -> None:
    unwound: list[int] = []

    async def one_hangs(index: int) -> Episode:
        if index != 2:
            return scored(index)
        try:
            await asyncio.Event().wait()
        finally:
            unwound.append(index)
        raise AssertionError

    episodes = await run_group(one_hangs, 4, stragglers=StragglerPolicy(timeout_seconds=0.02))
    assert [episode.disposition for episode in episodes] == ["completed", "completed", "straggler_killed", "completed"]
    assert (episodes[2].outcome.status, episodes[2].outcome.reward) == ("cancelled", None)
    assert unwound == [2]


async def test_failures_count_towards_the_quorum() -> None:
    async def mostly_broken(index: int) -> Episode:
        if index == 0:
            await asyncio.Event().wait()
        raise OSError("down")

    policy = StragglerPolicy(timeout_seconds=0.02, quorum=2)
    episodes = await run_group(mostly_broken, 3, stragglers=policy)
    assert [e.disposition for e in episodes] == ["straggler_killed", "worker_launch_failed", "worker_launch_failed"]


async def test_a_group_of_one_is_never_cut_before_it_ends() -> None:
    episodes = await run_group(member, 1, stragglers=StragglerPolicy(timeout_seconds=0.001))
    assert episodes[0].outcome.reward == 0


class Queue(RolloutLease):
    """A lease with `permits` places; says how long each member waited from a list."""

    def __init__(self, size: int, waits: dict[int, float], gates: dict[int, asyncio.Event]) -> None:
        super().__init__(size)
        self.waits, self.gates, self.inside = waits, gates, 0

    def rollout(self, index: int) -> AbstractAsyncContextManager[float]:
        return self._place(index)

    @asynccontextmanager
    async def _place(self, index: int) -> AsyncIterator[float]:
        if index in self.gates:
            await self.gates[index].wait()
        self.inside += 1
        try:
            yield self.waits.get(index, 0.0)
        finally:
            self.inside -= 1


async def test_a_member_still_waiting_for_its_permit_is_not_cut() -> None:
    gate = asyncio.Event()
    lease = Queue(4, {}, {3: gate})

    async def play(index: int) -> Episode:
        if index == 2:
            await asyncio.Event().wait()
        if index == 3:
            return scored(3)
        return scored(index)

    group = asyncio.create_task(run_group(play, 4, lease, StragglerPolicy(timeout_seconds=0.02, quorum=2)))
    await asyncio.wait({group}, timeout=0.1)
    assert not group.done()
    gate.set()
    episodes = await group
    assert [e.disposition for e in episodes] == ["completed", "completed", "straggler_killed", "completed"]
    assert lease.inside == 0


async def test_a_member_that_started_later_has_as_much_more_time() -> None:
    late = asyncio.Event()
    lease = Queue(3, {0: 1.0, 1: 1.0, 2: 1e6}, {})

    async def play(index: int) -> Episode:
        if index == 2:
            await late.wait()
        return scored(index)

    group = asyncio.create_task(run_group(play, 3, lease, StragglerPolicy(timeout_seconds=0.01)))
    await asyncio.wait({group}, timeout=0.1)
    assert not group.done()
    late.set()
    assert [e.disposition for e in await group] == ["completed"] * 3


async def test_the_rollout_itself_sees_no_lease() -> None:
    lease = RolloutLease(1)
    seen: list[RolloutLease] = []

    async def play(index: int) -> Episode:
        seen.append(rollout_lease())
        return scored(index)

    with lease_scope(lease):
        await run_group(play, 1, lease)
    assert seen[0] is not lease


@settings(max_examples=40, deadline=None)
@given(st.lists(st.sampled_from(["score", "none", "raise", "cancel", "hang"]), min_size=1, max_size=6), st.data())
def test_every_way_to_end_settles_exactly_once(ways: list[str], data: st.DataObject) -> None:
    hanging = ways.count("hang")
    quorum = data.draw(st.integers(1, max(1, len(ways) - hanging)))
    if hanging == len(ways):
        return

    async def play(index: int) -> Any:
        way = ways[index]
        if way == "hang":
            await asyncio.Event().wait()
        if way == "raise":
            raise ValueError("x")
        if way == "cancel":
            raise asyncio.CancelledError
        return scored(index) if way == "score" else None

    policy = StragglerPolicy(timeout_seconds=0.001, quorum=quorum)
    episodes = asyncio.run(run_group(play, len(ways), stragglers=policy))
    expected = {"score": "completed", "hang": "straggler_killed"}
    assert [e.disposition for e in episodes] == [expected.get(way, "worker_launch_failed") for way in ways]
    assert [e.outcome.reward is not None for e in episodes] == [way == "score" for way in ways]
