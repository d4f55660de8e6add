"""Tool-call parsers: a model's text to content, reasoning, calls and unparsed blocks."""

from platoon.render.parsers.base import ParsedText, ToolCall, ToolCallParser, UnparsedCall
from platoon.render.parsers.registry import PARSERS, find_parser

__all__ = ["PARSERS", "ParsedText", "ToolCall", "ToolCallParser", "UnparsedCall", "find_parser"]
