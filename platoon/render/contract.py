"""What a renderer promises: messages to prompt text, text to tokens, sampled tokens to a message.

Records and protocols only. A renderer is shared by all rollouts of a process and never changed by a request.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

Message = Mapping[str, Any]
ToolDefinition = Mapping[str, Any]


class RenderError(ValueError):
    """A conversation that the model's template cannot show. The request's fault, not the model's."""


@dataclass(frozen=True)
class ParsedReply:
    """One sampled reply, read back.

    `tool_calls`: [{id, name, arguments (dict)}]. `unparsed`: [{raw_text, error}], text that looks like a call and is
    none; it is in neither `content` nor `reasoning`. `recovered`: calls accepted though their markup was damaged.
    `success`: a stop token was sampled.
    """

    content: str
    role: str = "assistant"
    reasoning: str | None = None
    tool_calls: list[dict[str, Any]] = field(default_factory=list)
    unparsed: list[dict[str, str]] = field(default_factory=list)
    recovered: int = 0
    success: bool = True


class Renderer(Protocol):
    @property
    def stop(self) -> tuple[int, ...] | tuple[str, ...]:
        """What ends a reply: ids of tokens, with some cookbook renderers strings."""
        ...

    def render(self, messages: Sequence[Message], tools: Sequence[ToolDefinition] | None, **overrides: Any) -> str:
        """The prompt's text, generation prompt included. Overrides that it does not know are ignored. RenderError."""
        ...

    def encode(self, text: str) -> list[int]: ...

    def decode(self, tokens: Sequence[int]) -> str: ...

    def parse(self, tokens: Sequence[int], *, prompt_text: str, tools: Sequence[ToolDefinition] | None) -> ParsedReply:
        """Reads sampled tokens; never raises on what a model wrote."""
        ...
