"""What a dialect is to the server."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Protocol

from platoon.gateway.request import ChatRequest
from platoon.gateway.response import ChatResponse


class Dialect(Protocol):
    def request(self, body: dict[str, Any]) -> ChatRequest:
        """RequestError with the field's name when the body asks for what is not honoured."""
        ...

    def body(self, response: ChatResponse, asked: dict[str, Any], decode: Decode, model: str) -> dict[str, Any]:
        """The answer to a call that is not streamed. `asked`: the request's body."""
        ...

    def events(self, response: ChatResponse, asked: dict[str, Any], decode: Decode, model: str) -> Iterator[str]:
        """The server-sent events of a streamed answer, each with its blank line."""
        ...

    def error(self, error: BaseException) -> tuple[int, dict[str, Any]]:
        """(HTTP status, body)."""
        ...

    def error_event(self, error: BaseException) -> str:
        """The event of a failure after the stream began."""
        ...


class Decode(Protocol):
    def __call__(self, tokens: list[int]) -> str: ...
