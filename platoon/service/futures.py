"""Results that are not there yet, by request id: filled by the compute thread, awaited by HTTP handlers.

A request id is derived from what the client numbered, so a request that is sent again finds its first future. A
future is dropped some time after its result was fetched.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

KEEP_FETCHED_SECONDS = 60.0  # the SDK waits at most 30 s before it asks again for a reply that was lost
KEEP_UNFETCHED_SECONDS = 3600.0


class Result(Protocol):
    """What a job returns; `protobuf` exists where the SDK wants that encoding."""

    def json(self) -> dict[str, Any]: ...


@dataclass(frozen=True)
class Reply:
    """A result that only travels as JSON."""

    body: dict[str, Any]

    def json(self) -> dict[str, Any]:
        return self.body


@dataclass(frozen=True)
class Failure:
    """Why a job has no result. `user`: the request was wrong; `server`: the service was."""

    error: str
    category: Literal["user", "server"]

    def json(self) -> dict[str, Any]:
        return {"error": self.error, "category": self.category}


@dataclass(eq=False)
class Pending:
    """One request's future. `fingerprint` tells a repeated request from another one under the same number."""

    request_id: str
    fingerprint: tuple[str, int]
    result: Result | None = None
    finished_at: float | None = None
    fetched_at: float | None = None
    waiters: list[asyncio.Future[None]] = field(default_factory=list)


class FutureTable:
    """All futures of the service. Used on the event loop only."""

    def __init__(self) -> None:
        self._futures: dict[str, Pending] = {}

    def get(self, request_id: str) -> Pending | None:
        return self._futures.get(request_id)

    def open(self, request_id: str, fingerprint: tuple[str, int]) -> Pending:
        pending = Pending(request_id, fingerprint)
        self._futures[request_id] = pending
        return pending

    def finish(self, pending: Pending, result: Result, now: float) -> None:
        """The first result counts; a cancelled or failed future keeps what it has."""
        if pending.result is not None:
            return
        pending.result = result
        pending.finished_at = now
        for waiter in pending.waiters:
            _wake(waiter)
        pending.waiters.clear()

    async def wait(self, pending: Pending, seconds: float) -> Result | None:
        """The result, or None when it is not there after `seconds`."""
        if pending.result is not None:
            return pending.result
        loop = asyncio.get_running_loop()
        waiter: asyncio.Future[None] = loop.create_future()
        pending.waiters.append(waiter)
        timer = loop.call_later(seconds, _wake, waiter)
        try:
            await waiter
        finally:
            timer.cancel()
            if waiter in pending.waiters:
                pending.waiters.remove(waiter)
        return pending.result

    def tidy(self, now: float) -> None:
        """Drop the futures nobody will ask for any more."""
        for pending in [p for p in self._futures.values() if _is_old(p, now)]:
            del self._futures[pending.request_id]


def _is_old(pending: Pending, now: float) -> bool:
    if pending.finished_at is None:
        return False
    fetched = pending.fetched_at is not None and now - pending.fetched_at > KEEP_FETCHED_SECONDS
    return fetched or now - pending.finished_at > KEEP_UNFETCHED_SECONDS


def _wake(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)
