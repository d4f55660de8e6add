"""Writing a call's answer to a client that may leave at any time.

A client that disconnects before the answer exists cancels the call: nothing is recorded. A stream is synthetic: the
whole reply is sampled, with keepalive comments meanwhile, and then written as the dialect's events.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from platoon.gateway.dialects.base import Decode, Dialect
from platoon.gateway.response import ChatResponse

_CLIENT_GONE = 499
KEEPALIVE = b": keepalive\n\n"
Call = asyncio.Future[ChatResponse]


@dataclass(frozen=True)
class Answer:
    """How a finished call becomes bytes. `asked`: the request's body."""

    dialect: Dialect
    asked: dict[str, Any]
    decode: Decode
    model: str

    def response(self, call: Call) -> Response:
        error = call.exception()
        if error is not None:
            status, body = self.dialect.error(error)
            return json_response(body, status=status)
        result = call.result()
        body = self.dialect.body(result, self.asked, self.decode, self.model)
        return json_response(body, call_id=result.call_id)

    def events(self, call: Call) -> Iterator[str]:
        error = call.exception()
        if error is not None:
            yield self.dialect.error_event(error)
        else:
            yield from self.dialect.events(call.result(), self.asked, self.decode, self.model)


def json_response(body: dict[str, Any], *, status: int = 200, call_id: str | None = None) -> Response:
    headers = {} if call_id is None else {"x-platoon-call-id": call_id}
    return Response(json.dumps(body), status_code=status, headers=headers, media_type="application/json")


async def answer_unless_gone(call: Call, receive: Receive, answer: Answer) -> Response:
    """The call's answer; the call is cancelled when the client leaves first."""
    gone: asyncio.Future[Any] = asyncio.create_task(_disconnected(receive))
    try:
        await asyncio.wait([call, gone], return_when=asyncio.FIRST_COMPLETED)
        return Response(status_code=_CLIENT_GONE) if not call.done() else answer.response(call)
    finally:
        await _cancel(call, gone)


class EventStream(Response):
    """A streamed answer. Comments keep the connection alive while the reply is sampled."""

    media_type = "text/event-stream"

    def __init__(self, call: Call, answer: Answer, keepalive_seconds: float) -> None:
        super().__init__(headers={"cache-control": "no-cache", "x-accel-buffering": "no"})
        del self.headers["content-length"]
        self._call = call
        self._answer = answer
        self._keepalive_seconds = keepalive_seconds

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        gone: asyncio.Future[Any] = asyncio.create_task(_disconnected(receive))
        waited: list[asyncio.Future[Any]] = [self._call, gone]
        try:
            await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
            while not self._call.done() and not gone.done():
                await asyncio.wait(waited, timeout=self._keepalive_seconds, return_when=asyncio.FIRST_COMPLETED)
                if not self._call.done() and not gone.done():
                    await _send(send, KEEPALIVE)
            if self._call.done():
                for event in self._answer.events(self._call):
                    await _send(send, event.encode())
                await send({"type": "http.response.body", "body": b"", "more_body": False})
        finally:
            await _cancel(self._call, gone)


async def _send(send: Send, data: bytes) -> None:
    await send({"type": "http.response.body", "body": data, "more_body": True})


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _cancel(*tasks: asyncio.Future[Any]) -> None:
    """Cancels what still runs and waits until it has ended, so that no call outlives its request."""
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)
