"""Parsers by name, alias or `package.module:attr`."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import Any

from platoon.config import ConfigError
from platoon.render.parsers.base import ParsedText, ToolCallParser
from platoon.render.parsers.hermes import HermesParser

# In the order in which `auto` tries them.
PARSERS: tuple[type[ToolCallParser], ...] = (HermesParser,)

Tags = str | Sequence[str] | None


def reasoning_arguments(setting: Tags) -> dict[str, Any]:
    """`reasoning_tags` as a parser's constructor takes it: `auto`, `none`/None, or [open, close]. ConfigError."""
    if setting == "auto":
        return {}
    if setting is None or setting == "none":
        return {"reasoning": False}
    if isinstance(setting, list | tuple) and len(setting) == 2 and all(isinstance(t, str) and t for t in setting):
        return {"reasoning_tags": (setting[0], setting[1])}
    raise ConfigError([f"renderer_kwargs.reasoning_tags is {setting!r}; expected auto, none or [open, close]"])


def find_parser(name: str, tags: Tags = "auto") -> ToolCallParser:
    """A new parser. ConfigError naming what exists when the name is unknown."""
    if name == "none":
        return ToolCallParser(**reasoning_arguments(tags))
    for cls in PARSERS:
        if name == cls.name or name in cls.aliases:
            return cls(**reasoning_arguments(tags))
    if ":" in name:
        return _load(name, tags)
    known = ", ".join(f"{cls.name} ({', '.join(cls.aliases)})" if cls.aliases else cls.name for cls in PARSERS)
    raise ConfigError(
        [f"renderer_kwargs.tool_call_parser {name!r} is unknown; there are auto, none, {known}, or package.module:attr"]
    )


class _Foreign(ToolCallParser):
    """A user's parser behind our contract."""

    def __init__(self, name: str, parse: Callable[..., ParsedText]) -> None:
        super().__init__()
        self.reference = name
        self._parse = parse

    def parse(
        self, text: str, *, tools: Sequence[Mapping[str, Any]] | None = None, in_reasoning: bool = False
    ) -> ParsedText:
        return self._parse(text, tools=tools, in_reasoning=in_reasoning)


def _load(reference: str, tags: Tags) -> ToolCallParser:
    module, _, attribute = reference.partition(":")
    try:
        found: Any = getattr(import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        raise ConfigError([f"renderer_kwargs.tool_call_parser {reference!r} cannot be loaded: {error}"]) from error
    if inspect.isclass(found) and issubclass(found, ToolCallParser):
        return found(**reasoning_arguments(tags))
    if isinstance(found, ToolCallParser):
        return found
    if tags != "auto":
        raise ConfigError([f"renderer_kwargs.reasoning_tags needs a ToolCallParser subclass; {reference!r} is none"])
    instance = found() if inspect.isclass(found) else found
    parse = getattr(instance, "parse", instance)
    if not callable(parse):
        raise ConfigError(
            [f"renderer_kwargs.tool_call_parser {reference!r} has no parse(text, *, tools, in_reasoning)"]
        )
    return _Foreign(reference, parse)
