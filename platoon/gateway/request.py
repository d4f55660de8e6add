"""A model call as every transport hands it over, and the checks that all of them share.

Values are read, never changed; what the gateway cannot honour is refused with the field's name.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from platoon.gateway.errors import RequestError
from platoon.gateway.sampling import SamplingOverrides

SWITCHES = ("enable_thinking", "preserve_thinking")


@dataclass(frozen=True)
class ChatRequest:
    """`sampling`: Chat Completions parameters (temperature, max_tokens, stop as a list, tool_choice, …)."""

    messages: Sequence[Mapping[str, Any]]
    tools: Sequence[Mapping[str, Any]] | None = None
    sampling: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class RenderRequest:
    """What the renderer gets. `switches`: the request's enable_thinking and preserve_thinking."""

    messages: Sequence[Mapping[str, Any]]
    tools: list[dict[str, Any]] | None
    switches: Mapping[str, bool]
    overrides: SamplingOverrides


def read_request(request: ChatRequest) -> RenderRequest:
    """RequestError (a ValueError) names the first field that cannot be honoured."""
    choice = request.sampling.get("tool_choice")
    if choice not in (None, "auto", "none"):
        raise RequestError(f"tool_choice {choice!r} is not supported; use auto or none", "tool_choice")
    return RenderRequest(
        messages=request.messages,
        tools=normal_tools(request.tools),
        switches=_switches(request.sampling),
        overrides=_overrides(request.sampling),
    )


def normal_tools(tools: Any) -> list[dict[str, Any]] | None:
    """Tools as `{type, function: {name, description?, parameters}}`, in their own key order; None when there are none.

    Templates dump tools as JSON, so the order of keys is part of the prompt. Other keys never reach the model.
    """
    if tools is None or (isinstance(tools, list | tuple) and not tools):
        return None
    if not isinstance(tools, list | tuple):
        raise RequestError(f"tools is a {type(tools).__name__}, not a list", "tools")
    return [_tool(tool, index) for index, tool in enumerate(tools)]


def _tool(tool: Any, index: int) -> dict[str, Any]:
    if not isinstance(tool, Mapping):
        raise RequestError(f"tools[{index}] is a {type(tool).__name__}, not an object", "tools")
    inner = tool.get("function")
    source: Mapping[str, Any] = inner if isinstance(inner, Mapping) else tool
    name = source.get("name")
    if not isinstance(name, str) or not name:
        raise RequestError(f"tools[{index}] has no name", "tools")
    function: dict[str, Any] = {}
    for key, value in source.items():
        if key == "name" or (key == "description" and value is not None):
            function[key] = value
        elif key == "parameters":
            function[key] = value or _no_parameters()
    function.setdefault("parameters", _no_parameters())
    keys = list(tool)
    if source is inner and tool.get("type") == "function" and keys.index("function") < keys.index("type"):
        return {"function": function, "type": "function"}
    return {"type": "function", "function": function}


def _no_parameters() -> dict[str, Any]:
    return {"type": "object", "properties": {}}


def _switches(sampling: Mapping[str, Any]) -> dict[str, bool]:
    extra = sampling.get("extra_body") or {}
    if not isinstance(extra, Mapping):
        raise RequestError("extra_body is not an object", "extra_body")
    switches: dict[str, bool] = {}
    for source in (extra, sampling):
        kwargs = source.get("chat_template_kwargs") or {}
        if not isinstance(kwargs, Mapping):
            raise RequestError("chat_template_kwargs is not an object", "chat_template_kwargs")
        switches |= {name: bool(kwargs[name]) for name in SWITCHES if kwargs.get(name) is not None}
    effort = sampling["reasoning_effort"] if "reasoning_effort" in sampling else extra.get("reasoning_effort")
    if effort == "none":
        switches["enable_thinking"] = False
    return switches


def _overrides(sampling: Mapping[str, Any]) -> SamplingOverrides:
    length = "max_completion_tokens" if sampling.get("max_completion_tokens") is not None else "max_tokens"
    return SamplingOverrides(
        max_tokens=_integer(sampling, length, low=0),
        temperature=_number(sampling, "temperature", 0.0, 2.0),
        top_p=_number(sampling, "top_p", 0.0, 1.0),
        top_k=_integer(sampling, "top_k"),
        seed=_integer(sampling, "seed"),
        stop=_stop(sampling),
    )


def _integer(sampling: Mapping[str, Any], key: str, low: int | None = None) -> int | None:
    value = sampling.get(key)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or (low is not None and value < low):
        bound = "" if low is None else f" of at least {low}"
        raise RequestError(f"{key} is {value!r}; expected an integer{bound}", key)
    return value


def _number(sampling: Mapping[str, Any], key: str, low: float, high: float) -> float | None:
    value = sampling.get(key)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
        raise RequestError(f"{key} is {value!r}; expected a number from {low:g} to {high:g}", key)
    return float(value)


def _stop(sampling: Mapping[str, Any]) -> tuple[str, ...] | None:
    value = sampling.get("stop")
    if value is None:
        return None
    if not isinstance(value, list | tuple) or not all(isinstance(item, str) and item for item in value):
        raise RequestError(f"stop is {value!r}; expected a list of non-empty strings", "stop")
    return tuple(value) or None
