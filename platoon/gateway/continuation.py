"""Which recorded call a new prompt continues.

By text: a prompt continues a call when it begins with that call's prompt and reply. By conversation: also when its
messages begin with the call's messages and reply, though the template writes history differently (it drops old
reasoning, say). The recorded ids are reused and only the rest is encoded, so tokens never change under a conversation
and a turn costs its own length. Texts and messages are kept as lengths and digests.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from platoon.gateway.request import RenderRequest
from platoon.render import Message, Renderer, RenderError

Continuation = Literal["text", "conversation"]
MOST_TAILS = 4
# Stands for the last recorded reply while a template renders what follows it; no text of a model or a tool has it.
_MARK = "\ue000platoon-recorded-reply\ue001"


@dataclass(frozen=True, slots=True)
class Tail:
    """The end of a recorded conversation. `length`: characters of prompt and reply, `messages`: how many there are."""

    call_id: str
    length: int
    text_digest: bytes
    messages: int = 0
    conversation_digest: bytes = b""


class Tails:
    """The most recent conversation ends of one agent. An end that was continued makes room for the new one."""

    __slots__ = ("_tails",)

    def __init__(self) -> None:
        self._tails: list[Tail] = []

    def by_text(self, prompt_text: str) -> Tail | None:
        """The longest recorded conversation whose text the prompt begins with."""
        for tail in sorted(self._tails, key=lambda t: t.length, reverse=True):
            if tail.length <= len(prompt_text) and text_digest(prompt_text[: tail.length]) == tail.text_digest:
                return tail
        return None

    def by_conversation(self, request: RenderRequest) -> Tail | None:
        """The longest recorded conversation whose messages the request's begin with."""
        for tail in sorted(self._tails, key=lambda t: t.messages, reverse=True):
            enough = 0 < tail.messages < len(request.messages)
            if enough and _conversation_digest(request, tail.messages) == tail.conversation_digest:
                return tail
        return None

    def add(self, tail: Tail, continues: str | None) -> None:
        self._tails = [kept for kept in self._tails if kept.call_id != continues][-(MOST_TAILS - 1) :]
        self._tails.append(tail)


def text_tail(call_id: str, text: str) -> Tail:
    return Tail(call_id, len(text), text_digest(text))


def conversation_tail(call_id: str, text: str, request: RenderRequest, reply: Message) -> Tail:
    """The end of a call, to be found by its messages too."""
    count = len(request.messages) + 1
    digest = _conversation_digest(request, count, [*request.messages, reply])
    return Tail(call_id, len(text), text_digest(text), count, digest)


def text_digest(text: str) -> bytes:
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).digest()


def text_after_reply(renderer: Renderer, request: RenderRequest, tail: Tail, recorded_end: str) -> str | None:
    """What the template writes after the reply that ends `tail`, or None when it cannot be told.

    `recorded_end`: the text of the reply's last token. Where that is what the template ends the turn with, it is not
    written twice.
    """
    marked = list(request.messages)
    marked[tail.messages - 1] = {"role": "assistant", "content": _MARK}
    try:
        text = renderer.render(marked, request.tools, **request.switches)
    except RenderError:
        return None
    if text.count(_MARK) != 1:
        return None
    after = text[text.index(_MARK) + len(_MARK) :]
    return after.removeprefix(recorded_end)


def _conversation_digest(
    request: RenderRequest, count: int, messages: Sequence[Mapping[str, Any]] | None = None
) -> bytes:
    told = [_told(message) for message in (messages or request.messages)[:count]]
    text = json.dumps([request.tools, dict(request.switches), told], sort_keys=True, default=str)
    return hashlib.blake2b(text.encode(), digest_size=16).digest()


def _told(message: Mapping[str, Any]) -> list[Any]:
    """What makes two messages the same: clients drop reasoning and add empty fields."""
    calls = message.get("tool_calls")
    names = [_call(call) for call in calls] if isinstance(calls, list | tuple) else []
    return [message.get("role"), message.get("content") or "", names]


def _call(call: Any) -> Any:
    function = call.get("function", call) if isinstance(call, Mapping) else call
    return [function.get("name"), function.get("arguments")] if isinstance(function, Mapping) else str(function)
