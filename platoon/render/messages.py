"""OpenAI messages made ready for a chat template: text content, tool calls with arguments as mappings.

Messages are never changed in place. What a text template cannot show (images, unknown parts) is refused.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from platoon.render.contract import Message, RenderError

_TEXT_PARTS = ("text", "input_text", "output_text")


def clean_messages(messages: Sequence[Message]) -> list[dict[str, Any]]:
    """Copies with `content` as text and `tool_calls` in OpenAI's nested form. RenderError names the message."""
    if not messages:
        raise RenderError("messages is empty; a prompt needs at least one message")
    return [_clean(message, index) for index, message in enumerate(messages)]


def _clean(message: Message, index: int) -> dict[str, Any]:
    if not (type(message) is dict or isinstance(message, Mapping)) or not isinstance(message.get("role"), str):
        raise RenderError(f"messages[{index}] is not an object with a string role")
    cleaned = dict(message)
    content = cleaned.get("content")
    if not isinstance(content, str):
        cleaned["content"] = _content_text(content, index)
    if "tool_calls" in cleaned:
        calls = cleaned["tool_calls"]
        if not calls:
            del cleaned["tool_calls"]
        elif isinstance(calls, list | tuple):
            cleaned["tool_calls"] = [
                _clean_call(call, f"messages[{index}].tool_calls[{n}]") for n, call in enumerate(calls)
            ]
        else:
            raise RenderError(f"messages[{index}].tool_calls is a {type(calls).__name__}, not a list")
    return cleaned


def _content_text(content: Any, index: int) -> str:
    if content is None:
        return ""
    if not isinstance(content, list | tuple):
        raise RenderError(f"messages[{index}].content is a {type(content).__name__}; expected text or a list of parts")
    texts: list[str] = []
    for part in content:
        if isinstance(part, str):
            texts.append(part)
            continue
        kind = part.get("type") if isinstance(part, Mapping) else type(part).__name__
        if kind in _TEXT_PARTS and isinstance(part.get("text"), str):
            texts.append(part["text"])
        elif kind == "thinking" and isinstance(part.get("thinking"), str):
            texts.append(f"<think>{part['thinking']}</think>")
        else:
            raise RenderError(
                f"messages[{index}] has a content part of type {kind!r}; only text can be shown to this model"
            )
    return "".join(texts)


def _field(value: Any, name: str) -> Any:
    return value.get(name) if isinstance(value, Mapping) else getattr(value, name, None)


def _clean_call(call: Any, where: str) -> dict[str, Any]:
    function = _field(call, "function")
    source = call if function is None else function
    name, arguments = _field(source, "name"), _field(source, "arguments")
    if not isinstance(name, str) or not name:
        raise RenderError(f"{where} has no function name")
    cleaned: dict[str, Any] = {"type": "function", "function": {"name": name, "arguments": _mapping(arguments, where)}}
    if (call_id := _field(call, "id")) is not None:
        cleaned["id"] = call_id
    return cleaned


def _mapping(arguments: Any, where: str) -> Mapping[str, Any]:
    if arguments is None or arguments == "":
        return {}
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments)
        except (ValueError, RecursionError) as error:
            raise RenderError(f"{where}.function.arguments is not JSON: {error}") from error
        if arguments is None:
            return {}
    if not isinstance(arguments, Mapping):
        raise RenderError(f"{where}.function.arguments is a {type(arguments).__name__}, not an object")
    return arguments
