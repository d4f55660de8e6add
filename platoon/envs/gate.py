"""Orders the tool calls of one live environment.

Calls are `serial` (one at a time), `concurrent` (beside others) or `exclusive` (alone, and a barrier by arrival).
Waiting is first come first served within an agent and round robin across agents. A granted operation runs to its
end even when its caller is cancelled; a call that waited too long never runs.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Literal, TypeVar

T = TypeVar("T")
CallClass = Literal["serial", "concurrent", "exclusive"]
DEFAULT_QUEUE_TIMEOUT_S = 240.0

_agent: ContextVar[str | None] = ContextVar("platoon_gate_agent", default=None)


class EnvBusy(RuntimeError):
    """The call was not granted in time. It never ran and may be made again."""

    def __init__(self, waited_s: float, timeout_s: float) -> None:
        super().__init__(f"the environment was busy for {waited_s:.1f} s (limit {timeout_s:g} s); the call was not run")
        self.waited_s = waited_s
        self.timeout_s = timeout_s


class GateClosed(RuntimeError):
    """The environment is closed; the call never ran."""


@contextmanager
def on_behalf_of(agent_id: str) -> Iterator[None]:
    """Within the block, gate calls queue in this agent's line."""
    token = _agent.set(agent_id)
    try:
        yield
    finally:
        _agent.reset(token)


@dataclass(eq=False)
class _Waiter:
    number: int
    kind: CallClass
    key: str
    granted: bool = False
    future: asyncio.Future[None] | None = None


@dataclass(eq=False)
class _Grant:
    gate: ToolGate
    kind: CallClass
    active: bool = True


_held: ContextVar[tuple[_Grant, ...]] = ContextVar("platoon_gate_held", default=())


@dataclass(eq=False)
class ToolGate:
    """One gate per live environment, shared by its session and its shared forks.

    `queue_timeout_s` bounds the wait of a call in seconds; None waits without limit.
    """

    queue_timeout_s: float | None = DEFAULT_QUEUE_TIMEOUT_S
    closed: bool = field(default=False, init=False)
    _numbers: Iterator[int] = field(default_factory=itertools.count, init=False)
    _lines: dict[str, deque[_Waiter]] = field(default_factory=dict, init=False)
    _queue: list[_Waiter] = field(default_factory=list, init=False)
    _exclusive: dict[int, _Waiter] = field(default_factory=dict, init=False)
    _running: dict[CallClass, int] = field(init=False)
    _tasks: set[asyncio.Task[object]] = field(default_factory=set, init=False)

    def __post_init__(self) -> None:
        limit = self.queue_timeout_s
        if limit is not None and (isinstance(limit, bool) or not limit > 0):
            raise ValueError(f"queue_timeout_s must be a positive number of seconds or null, not {limit!r}")
        self._running = {"serial": 0, "concurrent": 0, "exclusive": 0}

    @property
    def running(self) -> int:
        """Number of granted operations that have not ended."""
        return sum(self._running.values())

    @property
    def waiting(self) -> int:
        return sum(len(line) for line in self._lines.values())

    async def run(self, kind: CallClass, op: Callable[[], Awaitable[T]], *, view: str = "") -> T:
        """Run `op` once granted. A cancelled caller leaves at once; the operation still runs to its end.

        `view` is the fairness key when no agent is named. Raises EnvBusy, GateClosed, and what `op` raises.
        """
        grant = await self._acquire(kind, view)

        async def body() -> T:
            _held.set((*_held.get(), grant))
            return await op()

        task = asyncio.ensure_future(body())
        self._tasks.add(task)

        def ended(done: asyncio.Task[T]) -> None:
            self._tasks.discard(done)
            if not done.cancelled():
                done.exception()  # a caller that left never reads it; this keeps asyncio from reporting it
            self._release(grant)

        task.add_done_callback(ended)
        return await asyncio.shield(task)

    @asynccontextmanager
    async def hold(self, kind: CallClass, *, view: str = "") -> AsyncIterator[None]:
        """Hold a grant over a block that the caller's cancellation does reach."""
        grant = await self._acquire(kind, view)
        token = _held.set((*_held.get(), grant))
        try:
            yield
        finally:
            _held.reset(token)
            self._release(grant)

    def close(self) -> None:
        """Refuse waiters and later calls with GateClosed; running operations end in peace."""
        self.closed = True
        waiters = [waiter for line in self._lines.values() for waiter in line]
        self._lines.clear()
        self._queue.clear()
        self._exclusive.clear()
        for waiter in waiters:
            if waiter.future is not None and not waiter.future.done():
                waiter.future.set_exception(GateClosed("the environment was closed while the call waited"))

    async def _acquire(self, kind: CallClass, view: str) -> _Grant:
        if self.closed:
            raise GateClosed("the environment is closed")
        if any(grant.gate is self and grant.active for grant in _held.get()):
            raise RuntimeError("a tool called its own environment's gate: this would wait for itself for ever")
        waiter = _Waiter(next(self._numbers), kind, _agent.get() or view)
        self._enter(waiter)
        self._dispatch()
        if not waiter.granted:
            await self._wait(waiter)
        return _Grant(self, kind)

    async def _wait(self, waiter: _Waiter) -> None:
        loop = asyncio.get_running_loop()
        future = waiter.future = loop.create_future()
        started = time.monotonic()
        limit = self.queue_timeout_s
        timer = None if limit is None else loop.call_later(limit, self._expire, waiter, started, limit)
        try:
            await future
        except asyncio.CancelledError:
            if waiter.granted:  # the grant and the cancellation raced: give the grant back
                self._release(_Grant(self, waiter.kind))
            else:
                self._withdraw(waiter)
            raise
        finally:
            if timer is not None:
                timer.cancel()

    def _expire(self, waiter: _Waiter, started: float, limit: float) -> None:
        if waiter.granted or waiter.future is None or waiter.future.done():
            return
        waiter.future.set_exception(EnvBusy(time.monotonic() - started, limit))
        self._withdraw(waiter)

    def _enter(self, waiter: _Waiter) -> None:
        line = self._lines.setdefault(waiter.key, deque())
        line.append(waiter)
        if len(line) == 1:
            self._queue.append(waiter)
        if waiter.kind == "exclusive":
            self._exclusive[waiter.number] = waiter

    def _leave(self, waiter: _Waiter) -> None:
        """Take the waiter out of its line; the next of its line joins the back of the queue."""
        line = self._lines.get(waiter.key)
        if line is None or waiter not in line:
            return
        was_head = line[0] is waiter
        line.remove(waiter)
        if not line:
            del self._lines[waiter.key]
        if was_head:
            self._queue.remove(waiter)
            if line:
                self._queue.append(line[0])
        self._exclusive.pop(waiter.number, None)

    def _withdraw(self, waiter: _Waiter) -> None:
        self._leave(waiter)
        self._dispatch()

    def _release(self, grant: _Grant) -> None:
        grant.active = False
        self._running[grant.kind] -= 1
        self._dispatch()

    def _dispatch(self) -> None:
        """Grant everything allowed, in queue order; waiters that move up are looked at in the same pass."""
        index = 0
        while index < len(self._queue):
            waiter = self._queue[index]
            if self._allowed(waiter):
                self._running[waiter.kind] += 1
                waiter.granted = True
                self._leave(waiter)
                if waiter.future is not None and not waiter.future.done():
                    waiter.future.set_result(None)
                if waiter.kind == "exclusive":
                    return
                continue  # the queue moved up by one at this index
            index += 1

    def _allowed(self, waiter: _Waiter) -> bool:
        if self._running["exclusive"]:
            return False
        barrier = next(iter(self._exclusive), None)
        if barrier is not None and waiter.number > barrier:
            return False
        if waiter.kind == "concurrent":
            return True
        if waiter.kind == "serial":
            return not self._running["serial"]
        return not self.running and all(other.number >= waiter.number for other in self._queue)
