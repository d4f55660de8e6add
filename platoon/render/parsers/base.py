"""The parser contract and what all formats share: the split between reasoning and reply.

A parser never raises on what a model wrote, and runs in about linear time on any text.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar


@dataclass(frozen=True)
class ToolCall:
    """`id`: the one that the model wrote, where the format has ids. `recovered`: the markup was damaged."""

    name: str
    arguments: dict[str, Any]
    id: str | None = None
    recovered: bool = False


@dataclass(frozen=True)
class UnparsedCall:
    raw_text: str
    error: str


@dataclass(frozen=True)
class ParsedText:
    """`content` and `reasoning` are stripped. The raw text of an unparsed call is in neither."""

    content: str
    reasoning: str | None = None
    calls: tuple[ToolCall, ...] = ()
    unparsed: tuple[UnparsedCall, ...] = ()


class ToolCallParser:
    """Base of all formats. This one knows no calls: it only splits reasoning from content (parser `none`)."""

    name: ClassVar[str] = "none"
    aliases: ClassVar[tuple[str, ...]] = ()
    tags: ClassVar[tuple[str, str]] = ("<think>", "</think>")

    def __init__(self, reasoning_tags: tuple[str, str] | None = None, *, reasoning: bool = True) -> None:
        """`reasoning_tags` replaces the format's own pair; `reasoning=False` reads no reasoning at all."""
        self.reasoning_tags: tuple[str, str] | None = (reasoning_tags or self.tags) if reasoning else None

    def call_start(self, text: str) -> int | None:
        """Offset at which the first real call begins, or None."""
        return None

    def parse_calls(
        self, text: str, tools: Sequence[Mapping[str, Any]] | None
    ) -> tuple[str, list[ToolCall], list[UnparsedCall]]:
        """(content, calls, unparsed) of the text that follows the reasoning."""
        return text, [], []

    def parse(
        self, text: str, *, tools: Sequence[Mapping[str, Any]] | None = None, in_reasoning: bool = False
    ) -> ParsedText:
        """`in_reasoning`: the prompt already opened the reasoning."""
        reasoning, rest = self.split_reasoning(text, in_reasoning)
        content, calls, unparsed = self.parse_calls(rest, tools)
        return ParsedText(content.strip(), reasoning or None, tuple(calls), tuple(unparsed))

    def split_reasoning(self, text: str, in_reasoning: bool) -> tuple[str, str]:
        """(reasoning, rest). Reasoning is read at the start only; without its end it stops where a call starts."""
        if self.reasoning_tags is None:
            return "", text
        opening, closing = self.reasoning_tags
        start = _skip_space(text, 0)
        while text.startswith(opening, start):
            in_reasoning = True
            start = _skip_space(text, start + len(opening))
        if not in_reasoning and not text.startswith(closing, start):
            return "", text
        end = text.find(closing, start)
        if end >= 0:
            return text[start:end].strip(), text[end + len(closing) :]
        body = text[start:]
        cut = self.call_start(body)
        return (body.strip(), "") if cut is None else (body[:cut].strip(), body[cut:])


def _skip_space(text: str, position: int) -> int:
    while position < len(text) and text[position].isspace():
        position += 1
    return position
