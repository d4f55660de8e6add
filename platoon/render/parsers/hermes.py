"""Hermes and Qwen 2.5 / 3: `<tool_call>` around a JSON object {name, arguments}.

A block starts at a `<tool_call>` that is followed by JSON or stands at a line start; elsewhere the tag is plain text.
The JSON is decoded whole, so strings may hold the closing tag. A bad block is unparsed; the others still count.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from platoon.render.parsers.base import ToolCall, ToolCallParser, UnparsedCall
from platoon.render.parsers.values import BadValue, decode_at

OPEN, CLOSE = "<tool_call>", "</tool_call>"
_TAG = re.compile(r"</?tool_call>")
# A failing decode counts the lines before it, so the number of failures is bounded to stay linear.
MAX_BAD_BLOCKS = 100


class HermesParser(ToolCallParser):
    name = "hermes"
    aliases = ("qwen25", "qwen")

    def call_start(self, text: str) -> int | None:
        for match in _TAG.finditer(text):
            if match.group() == OPEN and _starts_block(text, match.start()):
                return match.start()
        return None

    def parse_calls(
        self, text: str, tools: Sequence[Mapping[str, Any]] | None
    ) -> tuple[str, list[ToolCall], list[UnparsedCall]]:
        return _Scan(text).run()


class _Scan:
    """One walk over a text. The tags are found once, so the walk is linear however often they repeat."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.tags = [(m.start(), m.group() == OPEN) for m in _TAG.finditer(text)]
        self.next_tag = 0
        self.content: list[str] = []
        self.calls: list[ToolCall] = []
        self.unparsed: list[UnparsedCall] = []

    def run(self) -> tuple[str, list[ToolCall], list[UnparsedCall]]:
        done = 0
        while (start := self._next_block(done)) is not None:
            self.content.append(self.text[done:start])
            done = self._block(start)
        self.content.append(self.text[done:])
        return "".join(self.content), self.calls, self.unparsed

    def _tags_from(self, position: int) -> Iterator[tuple[int, bool]]:
        """Tags at or after `position`; the cursor only moves forward."""
        while self.next_tag < len(self.tags) and self.tags[self.next_tag][0] < position:
            self.next_tag += 1
        for index in range(self.next_tag, len(self.tags)):
            yield self.tags[index]

    def _next_block(self, position: int) -> int | None:
        for at, opens in self._tags_from(position):
            if opens and _starts_block(self.text, at):
                return at
        return None

    def _block(self, start: int) -> int:
        """Reads the block at `start`; returns the offset behind it."""
        text, position = self.text, _skip_space(self.text, start + len(OPEN))
        found: list[tuple[Any, bool]] = []
        while True:
            try:
                value, position, lenient = decode_at(text, position)
            except BadValue as error:
                if found:
                    break
                return self._fail(start, start + len(OPEN), str(error))
            found.append((value, lenient))
            after = _skip_space(text, position)
            if after >= len(text) or text[after] != "{":
                break
            position = after
        end, damaged, late = self._close(position)
        try:
            calls = [call for value, lenient in found for call in _calls(value, lenient or damaged or len(found) > 1)]
        except BadValue as error:
            self.unparsed.append(UnparsedCall(text[start:end], str(error)))
            return end
        self.calls += calls
        self.content.append(late)
        return end

    def _close(self, position: int) -> tuple[int, bool, str]:
        """(offset behind the block, damaged, text before a late closing tag: content) after its JSON."""
        text, after = self.text, _skip_space(self.text, position)
        if text.startswith(CLOSE, after):
            return after + len(CLOSE), False, ""
        for at, opens in self._tags_from(position):
            if not opens:
                return at + len(CLOSE), True, text[position:at]
            if _starts_block(text, at):
                break
        return position, True, ""

    def _fail(self, start: int, inside: int, error: str) -> int:
        """The block is unparsed up to its closing tag, else up to the next block, else to the end."""
        end = len(self.text)
        tags = self._tags_from(inside) if len(self.unparsed) < MAX_BAD_BLOCKS else iter(())
        for at, opens in tags:
            if not opens:
                end = at + len(CLOSE)
                break
            if _starts_block(self.text, at):
                end = at
                break
        self.unparsed.append(UnparsedCall(self.text[start:end], error))
        return end


def _calls(value: Any, damaged: bool) -> list[ToolCall]:
    """The calls of one decoded value: an object, or a list of them."""
    items = value if isinstance(value, list) else [value]
    if not items:
        raise BadValue("an empty list holds no call")
    return [_call(item, damaged) for item in items]


def _call(item: Any, damaged: bool) -> ToolCall:
    if not isinstance(item, dict):
        raise BadValue(f"a call is an object, not a {type(item).__name__}")
    name = item.get("name")
    if not isinstance(name, str) or not name:
        raise BadValue("the call has no name")
    arguments = item.get("arguments", item.get("parameters"))
    if arguments is None:
        arguments = {}
    if isinstance(arguments, str):
        arguments, damaged = _decode_text(arguments), True
    if not isinstance(arguments, dict):
        raise BadValue(f"arguments is a {type(arguments).__name__}, not an object")
    call_id = item.get("id")
    return ToolCall(name, arguments, call_id if isinstance(call_id, str) and call_id else None, damaged)


def _decode_text(text: str) -> Any:
    value, end, _ = decode_at(text, _skip_space(text, 0))
    if _skip_space(text, end) != len(text):
        raise BadValue("arguments is text with something behind its JSON")
    return value


def _starts_block(text: str, at: int) -> bool:
    after = _skip_space(text, at + len(OPEN))
    if after < len(text) and text[after] in "{[":
        return True
    before = at
    while before > 0 and text[before - 1] in " \t":
        before -= 1
    return before == 0 or text[before - 1] == "\n"


def _skip_space(text: str, position: int) -> int:
    while position < len(text) and text[position] in " \t\r\n":
        position += 1
    return position
