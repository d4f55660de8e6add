"""A chat template in a sandboxed jinja2 environment, set up as Hugging Face's `apply_chat_template` sets it up.

Whitespace control, loop controls, `tojson` without HTML escaping, `raise_exception`, `strftime_now` and the
`generation` tag behave as templates on the hub expect.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from platoon.config import ConfigError
from platoon.render.contract import RenderError
from platoon.render.tokenizer import read_json


class _GenerationTag(Extension):
    """`{% generation %}…{% endgeneration %}` marks assistant tokens in some templates; here its body is just shown."""

    tags = {"generation"}  # noqa: RUF012

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return list(parser.parse_statements(("name:endgeneration",), drop_needle=True))


def _raise_exception(message: str) -> None:
    raise jinja2.TemplateError(message)


def _strftime_now(pattern: str) -> str:
    return datetime.now().strftime(pattern)


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


class _Sandbox(ImmutableSandboxedEnvironment):
    """The sandbox, with `message.role` on a plain dict looked up at once: half of a long conversation's rendering.

    Names that dict itself has (`items`, `keys`, …) take the sandbox's way.
    """

    _own = frozenset(dir(dict))

    def getattr(self, obj: Any, attribute: str) -> Any:
        if type(obj) is dict and attribute not in self._own:
            return obj[attribute] if attribute in obj else self.undefined(obj=obj, name=attribute)
        return super().getattr(obj, attribute)


def _environment() -> ImmutableSandboxedEnvironment:
    env = _Sandbox(trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationTag, loopcontrols])
    env.filters["tojson"] = _tojson
    env.globals["raise_exception"] = _raise_exception
    env.globals["strftime_now"] = _strftime_now
    return env


class ChatTemplate:
    """A compiled template. Several named ones: `tool_use` shows conversations with tools, `default` the rest."""

    def __init__(self, sources: Mapping[str, str], variables: Mapping[str, Any], origin: Path) -> None:
        env = _environment()
        try:
            self._templates = {name: env.from_string(source) for name, source in sources.items()}
        except jinja2.TemplateError as error:
            raise ConfigError([f"the chat template of {origin} does not compile: {error}"]) from error
        self._variables = dict(variables)
        self.hash = hashlib.sha256("\0".join(f"{k}\0{v}" for k, v in sorted(sources.items())).encode()).hexdigest()

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None,
        *,
        add_generation_prompt: bool,
        variables: Mapping[str, Any],
    ) -> str:
        """The conversation's text. RenderError with the template's own message when it refuses the messages."""
        template = self._templates.get("tool_use") if tools else None
        if template is None:
            template = self._templates["default"]
        names: dict[str, Any] = {**self._variables, **variables, "messages": messages, "tools": tools or None}
        names["add_generation_prompt"] = add_generation_prompt
        names.setdefault("documents", None)
        try:
            return template.render(names)
        except (jinja2.TemplateError, TypeError, ValueError, KeyError, AttributeError, IndexError) as error:
            raise RenderError(f"the chat template refused the messages: {error}") from error
        except RecursionError as error:
            raise RenderError("the chat template refused the messages: they are nested too deeply") from error


def load_template(directory: Path, variables: Mapping[str, Any]) -> ChatTemplate:
    """The template of a model directory: chat_template.jinja, chat_template.json, else tokenizer_config.json."""
    path = directory / "chat_template.jinja"
    found: Any = path.read_text(encoding="utf-8") if path.is_file() else None
    for name in ("chat_template.json", "tokenizer_config.json"):
        found = found or read_json(directory / name).get("chat_template")
    if isinstance(found, str):
        sources = {"default": found}
    elif isinstance(found, list):
        sources = {str(item["name"]): str(item["template"]) for item in found}
    else:
        raise ConfigError(
            [f"{directory} has no chat template; use an instruct model, or add a chat_template.jinja to its directory"]
        )
    if "default" not in sources:
        raise ConfigError([f"{directory} names chat templates {sorted(sources)} and none is called 'default'"])
    return ChatTemplate(sources, variables, directory)
