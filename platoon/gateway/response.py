"""A model call's answer: the message for the agent, and what the record keeps of it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from platoon.render import ParsedReply

FinishReason = Literal["stop", "length", "tool_calls"]
ROLES = ("assistant", "user", "system", "tool", "function")


@dataclass(frozen=True, slots=True)
class Usage:
    prompt_tokens: int
    completion_tokens: int

    def record(self) -> dict[str, int]:
        return {
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": self.completion_tokens,
            "total_tokens": self.prompt_tokens + self.completion_tokens,
        }


@dataclass(frozen=True, slots=True)
class Diagnostics:
    """How one generation ended and what was read from it."""

    stop_reason: Literal["stop", "length"]
    generated_tokens: int
    parse_success: bool
    parsed_tool_calls: int
    emitted_tool_calls: int
    recovered_tool_calls: int
    unparsed_tool_calls: int

    def record(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.__slots__}


@dataclass(frozen=True, slots=True)
class ChatResponse:
    """`tokens` and `logprobs` are the sampled ones. A budget stop has neither, and no `diagnostics`."""

    call_id: str
    message: dict[str, Any]
    finish_reason: FinishReason
    usage: Usage
    diagnostics: Diagnostics | None
    tokens: Sequence[int] = ()
    logprobs: Sequence[float] = ()


def message_of(parsed: ParsedReply, *, truncated: bool) -> tuple[dict[str, Any], int]:
    """(OpenAI assistant message, emitted tool calls). A truncated or unfinished reply never emits tool calls."""
    content = parsed.content
    if parsed.unparsed:
        raw = "\n".join(block["raw_text"] for block in parsed.unparsed)
        content = f"{content.rstrip()}\n\n{raw}" if content.strip() else raw
    complete = parsed.success and not truncated
    role = parsed.role if complete and parsed.role in ROLES else "assistant"
    message: dict[str, Any] = {"role": role, "content": content}
    if parsed.reasoning:
        message["reasoning_content"] = parsed.reasoning
    calls = parsed.tool_calls if complete else []
    if calls:
        message["tool_calls"] = [
            {
                "id": call["id"],
                "type": "function",
                "function": {"name": call["name"], "arguments": json.dumps(call["arguments"], ensure_ascii=False)},
            }
            for call in calls
        ]
    return message, len(calls)


def budget_stop(call_id: str, cap: int) -> ChatResponse:
    """The answer to a policy call past its agent's cap: not sampled, not recorded."""
    text = f"The step budget of {cap} model calls is used up. Stop now; no further call will be answered."
    return ChatResponse(call_id, {"role": "assistant", "content": text}, "stop", Usage(0, 0), None)
