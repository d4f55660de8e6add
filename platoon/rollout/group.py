"""The rollouts of one group: all started together, each on its permit, the slowest cut when a policy says so.

Every member settles: with an episode, or with the reason why there is none. Nothing here knows tasks or credit.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress

from platoon.config.problems import ConfigError
from platoon.config.rollout import StragglerPolicy
from platoon.envs.teardown import Teardowns
from platoon.extensions.boundary import Boundary
from platoon.rollout.episode import Episode
from platoon.rollout.lease import FreeLease, RolloutLease, lease_scope
from platoon.rollout.outcome import EnvNotPrepared, Outcome

log = logging.getLogger(__name__)
FATAL = (ConfigError, EnvNotPrepared)  # not this rollout's failure: the whole run cannot be played
RunMember = Callable[[int], Awaitable[Episode]]
TEARDOWN_WAIT_S = 60.0


async def run_group(
    run_member: RunMember, size: int, lease: RolloutLease | None = None, stragglers: StragglerPolicy | None = None
) -> list[Episode]:
    """The group's episodes by member. What a member raises becomes its episode, unless it is one of `FATAL`, which ends
    the group; cancellation cancels all members.

    `stragglers`: once its quorum (default: all but one) settled, members past its timeout are cancelled and get the
    disposition `straggler_killed`.
    """
    group = _Group(run_member, size, lease or FreeLease())
    try:
        if stragglers is None or stragglers.timeout_seconds is None:
            await asyncio.wait(group.tasks, return_when=asyncio.FIRST_EXCEPTION)
        else:
            quorum = stragglers.quorum if stragglers.quorum is not None else max(size - 1, 1)
            await group.cut(quorum, stragglers.timeout_seconds)
        group.raise_fatal()
        return [group.episode(index) for index in range(size)]
    finally:
        await group.stop()


class _Group:
    def __init__(self, run_member: RunMember, size: int, lease: RolloutLease) -> None:
        self._run_member = run_member
        self._lease = lease
        self._delays: list[float | None] = [None] * size
        self._moved = asyncio.Event()
        self._cut: set[int] = set()
        self.tasks = [asyncio.create_task(self._member(index)) for index in range(size)]
        for task in self.tasks:
            task.add_done_callback(lambda _: self._moved.set())

    async def _member(self, index: int) -> Episode:
        started = time.perf_counter()
        teardowns = Teardowns()
        async with self._lease.rollout(index) as waited:
            self._delays[index] = waited
            self._moved.set()
            episode: object = None
            with lease_scope(None), teardowns.collecting(), Boundary("rollout", quiet=True) as caught:
                episode = await self._run_member(index)
            await _finish(teardowns)
        if isinstance(episode, Episode):
            return episode
        if isinstance(caught.error, FATAL):
            raise caught.error
        caught.report()
        seconds = time.perf_counter() - started
        if caught.error is not None:
            reason = f"the rollout raised {caught.text}"
        else:
            reason = f"the rollout returned {type(episode).__name__}, not an Episode"
        return Episode.failed("worker_launch_failed", Outcome.infra("worker_launch_failed", reason=reason), seconds)

    async def cut(self, quorum: int, timeout_s: float) -> None:
        """Wait for the quorum, then cancel every member that is past its deadline."""
        while sum(task.done() for task in self.tasks) < quorum:
            await self._next(None)
        since = time.monotonic()
        while pending := [index for index, task in enumerate(self.tasks) if not task.done()]:
            late = [index for index in pending if self._deadline(index, since, timeout_s) <= time.monotonic()]
            if late:
                await self._cancel(late)
                continue
            await self._next(min(self._deadline(index, since, timeout_s) for index in pending) - time.monotonic())

    def _deadline(self, index: int, since: float, timeout_s: float) -> float:
        """A member that got its permit later than the first has as much more time; one without a permit, none."""
        own = self._delays[index]
        if own is None:
            return float("inf")
        first = min(delay for delay in self._delays if delay is not None)
        return since + timeout_s + own - first

    async def _next(self, timeout_s: float | None) -> None:
        """Until a member starts or ends, or the time is up."""
        if timeout_s == float("inf"):
            timeout_s = None
        self._moved.clear()
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await self._moved.wait()

    async def _cancel(self, members: list[int]) -> None:
        for index in members:
            self._cut.add(index)
            self.tasks[index].cancel()
        await asyncio.wait([self.tasks[index] for index in members])

    def raise_fatal(self) -> None:
        """Raise what a member raised because no rollout of the run can be played."""
        for task in self.tasks:
            if task.done() and not task.cancelled() and (error := task.exception()) is not None:
                raise error

    def episode(self, index: int) -> Episode:
        """A settled member's episode."""
        task = self.tasks[index]
        if not task.cancelled():
            return task.result()
        if index in self._cut:
            return Episode.failed("straggler_killed", Outcome("cancelled", reason="cut: its group had settled"))
        reason = "the rollout cancelled itself"
        return Episode.failed("worker_launch_failed", Outcome.infra("worker_launch_failed", reason=reason))

    async def stop(self) -> None:
        """Cancel what still runs, each member once, and wait for its end."""
        running = [task for task in self.tasks if not task.done()]
        for task in running:
            if not task.cancelling():
                task.cancel()
        if running:
            await asyncio.wait(running)
        for task in self.tasks:
            if not task.cancelled():
                task.exception()  # seen: the first one was raised


async def _finish(teardowns: Teardowns) -> None:
    """Wait for teardowns the rollout left behind. Its outcome stands when it is cancelled meanwhile."""
    try:
        left = await teardowns.wait(TEARDOWN_WAIT_S)
    except asyncio.CancelledError:
        task = asyncio.current_task()
        if task is not None:
            task.uncancel()
        return
    if left:
        log.warning("%d environment teardowns still run %g s after their rollout ended", left, TEARDOWN_WAIT_S)
