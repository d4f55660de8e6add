"""The lease of a group: its permits, handed to its rollouts one by one.

A workflow wraps each rollout's whole life, teardown included, in `async with rollout_lease().rollout(i)`. The block
waits for a permit and returns it on exit. The lease itself decides nothing: permits come from the pool behind
`Permits`. Outside a training draw `rollout_lease()` is a lease that never waits.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Protocol

logger = logging.getLogger(__name__)


class Permits(Protocol):
    """A group's claim on permits. Calls `on_grant(count)` for each later grant."""

    on_grant: Callable[[int], None] | None

    @property
    def granted(self) -> int: ...
    @property
    def startable(self) -> bool: ...
    def give_back(self, count: int) -> None: ...
    def shrink(self, size: int) -> None: ...
    def close(self) -> None: ...


@dataclass(frozen=True)
class LeaseHooks:
    """`released`: the group gave everything back (called once). `block`: +1/-1 as a rollout block opens/closes."""

    released: Callable[[], None] = lambda: None
    block: Callable[[int], None] = lambda change: None
    clock: Callable[[], float] = time.monotonic


class RolloutLease:
    """Permits of one group of `size` rollouts.

    `active` False: blocks hold nothing and never wait; all permits return when the lease is released. `permits` None:
    there is nothing to hold.
    """

    def __init__(
        self,
        size: int,
        permits: Permits | None = None,
        *,
        active: bool = True,
        name: str = "",
        hooks: LeaseHooks | None = None,
    ) -> None:
        self.size = size
        self.active = active and permits is not None
        self.closed = False
        self._permits = permits
        self._name = name
        self._hooks = hooks or LeaseHooks()
        self._unused = permits.granted if permits is not None else 0
        self._entered: set[int] = set()
        self._waiters: deque[asyncio.Future[bool]] = deque()
        self._started = asyncio.Event()
        self._warned = False
        if permits is not None:
            permits.on_grant = self._granted
        if self.startable:
            self._started.set()

    @property
    def startable(self) -> bool:
        """Enough permits are granted for the group to start."""
        return self._permits is None or self._permits.startable

    @property
    def unused(self) -> int:
        """Permits granted that no block holds."""
        return self._unused

    def shrink(self, size: int) -> None:
        """Become a lease of fewer rollouts before any began; permits beyond them return. ValueError for more."""
        if self._permits is not None:
            self._permits.shrink(size)
            self._unused = self._permits.granted
        self.size = size
        if self.startable:
            self._started.set()

    async def ready(self) -> None:
        """Return once the group may start or the lease is released; without yielding when it already may."""
        if not (self.closed or self.startable):
            await self._started.wait()

    def rollout(self, index: int) -> AbstractAsyncContextManager[float]:
        """The block of rollout `index`; its value is the seconds it waited, exactly 0.0 when it did not.

        IndexError for an index outside the group; RuntimeError on entry when that rollout had its block already.
        """
        if not 0 <= index < self.size:
            raise IndexError(f"rollout {index} is not one of the group's {self.size}")
        return self._block(index)

    def release(self) -> None:
        """The group ended: all permits return, waiting blocks go on without one. Harmless when repeated."""
        if self.closed:
            return
        self.closed = True
        waiters, self._waiters = self._waiters, deque()
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(False)
        self._unused = 0
        if self._permits is not None:
            self._permits.close()
            self._permits.on_grant = None  # the two would keep each other alive until the collector comes
        self._started.set()
        self._hooks.released()

    __call__ = release

    @asynccontextmanager
    async def _block(self, index: int) -> AsyncIterator[float]:
        if index in self._entered:
            raise RuntimeError(f"rollout {index} of {self._name or 'the group'} already had its block")
        self._entered.add(index)
        held, waited = False, 0.0
        if self.closed:
            self._warn(f"rollout {index} began after its group ended and holds no permit")
        elif self.active:
            held, waited = await self._acquire(index)
        self._hooks.block(1)
        try:
            yield waited
        finally:
            self._hooks.block(-1)
            if held and not self.closed and self._permits is not None:
                self._permits.give_back(1)

    async def _acquire(self, index: int) -> tuple[bool, float]:
        if self._unused:
            self._unused -= 1
            return True, 0.0
        waiter: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._waiters.append(waiter)
        since = self._hooks.clock()
        try:
            held = await waiter
        except asyncio.CancelledError:
            self._entered.discard(index)
            if waiter in self._waiters:
                self._waiters.remove(waiter)
            if waiter.done() and not waiter.cancelled() and waiter.result() and not self.closed:
                self._offer(1)  # granted in the instant of the cancellation: the next block gets it
            raise
        if not held:
            self._warn(f"rollout {index} was waiting when its group ended and holds no permit")
        return held, self._hooks.clock() - since

    def _granted(self, count: int) -> None:
        if self.closed:
            return
        self._offer(count)
        if self.startable:
            self._started.set()

    def _offer(self, count: int) -> None:
        while count and self._waiters:
            waiter = self._waiters.popleft()
            if not waiter.done():
                waiter.set_result(True)
                count -= 1
        self._unused += count

    def _warn(self, message: str) -> None:
        if not self._warned:
            self._warned = True
            logger.warning("%s: %s", self._name or "a group", message)


class FreeLease(RolloutLease):
    """The lease outside a training draw: any index, no permit, never waits, never ends."""

    def __init__(self) -> None:
        super().__init__(0)

    def rollout(self, index: int) -> AbstractAsyncContextManager[float]:
        return self._free()

    def release(self) -> None:
        return None

    @asynccontextmanager
    async def _free(self) -> AsyncIterator[float]:
        yield 0.0


_current: ContextVar[RolloutLease | None] = ContextVar("platoon_rollout_lease", default=None)


def rollout_lease() -> RolloutLease:
    """The lease of the draw this code runs in. Tasks inherit it; executor threads do not."""
    return _current.get() or FreeLease()


@contextmanager
def lease_scope(lease: RolloutLease | None) -> Iterator[None]:
    """Make `lease` the current one inside the block; None hides it."""
    token = _current.set(lease)
    try:
        yield
    finally:
        _current.reset(token)
