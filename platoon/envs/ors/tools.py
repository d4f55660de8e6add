"""The tools of a live openreward environment, as platoon's `ToolSpec`s with their call classes.

Knows the SDK's terminal tools, the hints that an environment class may carry, and the service's options.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, get_type_hints

from platoon.envs.contract import ToolSpec
from platoon.envs.gate import CallClass
from platoon.envs.ors.options import OrsOptions
from platoon.envs.ors.sdk import list_session_tools

# Keywords whose value is a schema, a list of schemas, or a mapping from names to schemas. A `title` elsewhere is data.
_ONE = ("items", "additionalProperties", "not", "if", "then", "else", "contains", "propertyNames")
_LISTS = ("anyOf", "oneOf", "allOf", "prefixItems")
_NAMED = ("properties", "$defs", "definitions", "patternProperties", "dependentSchemas")


@dataclass(frozen=True)
class ToolTable:
    """What a session offers. `declares_terminal` is False when nothing says which tool ends the episode."""

    specs: tuple[ToolSpec, ...]
    classes: Mapping[str, CallClass]

    @property
    def declares_terminal(self) -> bool:
        return any(spec.terminal for spec in self.specs)

    def is_terminal(self, name: str) -> bool:
        return any(spec.terminal and spec.name == name for spec in self.specs)

    def call_class(self, name: str) -> CallClass:
        return self.classes.get(name, "serial")


def clean_schema(schema: Any) -> dict[str, Any]:
    """A JSON schema without its `title` keywords; an empty one becomes an object without properties."""
    if not isinstance(schema, Mapping) or not schema:
        return {"type": "object", "properties": {}}
    return _without_titles(schema)


def _without_titles(schema: Mapping[str, Any]) -> dict[str, Any]:
    out: dict[str, Any] = {}
    for key, value in schema.items():
        if key == "title" and isinstance(value, str):
            continue
        if key in _ONE and isinstance(value, Mapping):
            value = _without_titles(value)
        elif key in _LISTS and isinstance(value, list):
            value = [_without_titles(item) if isinstance(item, Mapping) else item for item in value]
        elif key in _NAMED and isinstance(value, Mapping):
            value = {name: _without_titles(item) if isinstance(item, Mapping) else item for name, item in value.items()}
        out[key] = value
    return out


async def list_tools(env: Any, options: OrsOptions) -> ToolTable:
    """Ask the environment for its tools. What the environment raises goes up."""
    listed = await list_session_tools(env)
    hints = _Hints(env, options)
    specs = [hints.spec(tool.name, tool.description, tool.input_schema) for tool in listed.tools]
    terminal = getattr(listed, "terminal_tool", None)  # absent before SDK 0.1.157
    if terminal is not None:
        specs.append(hints.spec(terminal.name, terminal.description, _terminal_schema(env, terminal), terminal))
    return ToolTable(tuple(specs), {spec.name: hints.call_class(spec) for spec in specs})


def _tool_function(env: Any, name: str) -> Any:
    for owner in (env, *(getattr(env, "toolsets", None) or ())):
        function = getattr(owner, name, None)
        if function is not None and getattr(function, "_env_tool", False):
            return function
    return None


def _terminal_schema(env: Any, terminal: Any) -> dict[str, Any]:
    function = _tool_function(env, terminal.name)
    if function is not None and terminal.arg is not None:
        for annotation in get_type_hints(inspect.unwrap(function)).values():
            if terminal.arg in getattr(annotation, "model_fields", {}):
                schema: dict[str, Any] = annotation.model_json_schema()
                return schema
    if terminal.arg is None:
        return {}
    return {"type": "object", "properties": {terminal.arg: {"type": "string"}}, "required": [terminal.arg]}


class _Hints:
    """What options, class attributes and tool functions say about one environment's tools."""

    def __init__(self, env: Any, options: OrsOptions) -> None:
        self._env = env
        self._options = options
        self._terminal = self._declared("terminal")
        self._read_only = self._declared("read_only")
        self._concurrent = self._declared("concurrent")

    def _declared(self, kind: str) -> frozenset[str]:
        value: str | Iterable[str] = getattr(self._env, f"platoon_{kind}_tools", ())
        own = (value,) if isinstance(value, str) else tuple(value)
        return frozenset(own) | frozenset(getattr(self._options, f"{kind}_tools"))

    def spec(self, name: str, description: str, schema: Any, sdk_terminal: Any = None) -> ToolSpec:
        function = _tool_function(self._env, name)
        exclusive = bool(getattr(function, "_env_tool_exclusive", False))
        terminal = sdk_terminal is not None or exclusive or name in self._terminal
        clean = clean_schema(schema)
        meta = self._meta(name, function, clean, sdk_terminal)
        read_only = not terminal and (name in self._read_only or _says_read_only(meta))
        return ToolSpec(name, (description or "").strip(), clean, terminal, read_only, meta or None)

    def _meta(self, name: str, function: Any, schema: Mapping[str, Any], sdk_terminal: Any) -> dict[str, Any]:
        meta = {
            **(getattr(function, "_meta", None) or {}),
            **(getattr(self._env, "platoon_tool_meta", {}).get(name) or {}),
            **((self._options.tool_meta or {}).get(name) or {}),
        }
        if sdk_terminal is not None:
            meta["openreward.dev/terminal-tool"] = {"arg": sdk_terminal.arg}
        if "x-openhands-tool-routing" in schema:
            meta.setdefault("openhands.dev/tool-routing", schema["x-openhands-tool-routing"])
        override = (self._options.tool_routing_overrides or {}).get(name)
        if override is not None:
            meta["openhands.dev/tool-routing"] = override
        return meta

    def call_class(self, spec: ToolSpec) -> CallClass:
        if spec.terminal:
            return "exclusive"
        function = _tool_function(self._env, spec.name)
        if spec.name in self._concurrent or getattr(function, "_env_tool_concurrent", False):
            return "concurrent"
        return "serial"


def _says_read_only(meta: Mapping[str, Any]) -> bool:
    annotations = meta.get("annotations")
    return (
        meta.get("platoon.dev/read-only") is True
        or meta.get("readOnlyHint") is True
        or (isinstance(annotations, Mapping) and annotations.get("readOnlyHint") is True)
    )
