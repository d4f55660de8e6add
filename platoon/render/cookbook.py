"""tinker-cookbook's renderers behind our contract. Loaded only with the extra `tinker`: it brings torch.

A cookbook renderer writes tokens; here they pass as text and are encoded again, so that conversations continue from
recorded ids as with every other renderer.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from platoon.config import ConfigError
from platoon.render.contract import Message, ParsedReply, RenderError, ToolDefinition
from platoon.render.messages import clean_messages
from platoon.render.models import local_directory


class CookbookRenderer:
    """ConfigError for a name or a keyword that the cookbook's renderer does not have."""

    def __init__(self, model_name: str, renderer_name: str, kwargs: Mapping[str, Any]) -> None:
        from tinker_cookbook import renderers, tokenizer_utils

        directory = local_directory(model_name)
        self._tokenizer: Any = tokenizer_utils.get_tokenizer(model_name if directory is None else str(directory))
        try:
            self._renderer: Any = renderers.get_renderer(renderer_name, self._tokenizer, model_name=model_name)
        except (ValueError, AssertionError) as error:
            raise ConfigError([f"renderer_name {renderer_name!r} is unknown to tinker-cookbook: {error}"]) from error
        for key, value in kwargs.items():
            if not hasattr(self._renderer, key):
                raise ConfigError([f"renderer_kwargs.{key} is no attribute of the cookbook's {renderer_name}"])
            setattr(self._renderer, key, value)
        self.stop: tuple[int, ...] | tuple[str, ...] = tuple(self._renderer.get_stop_sequences())

    def render(self, messages: Sequence[Message], tools: Sequence[ToolDefinition] | None, **overrides: Any) -> str:
        converted = [_message(message) for message in clean_messages(messages)]
        if tools:
            system = ""
            if converted[0]["role"] == "system":
                system = converted.pop(0)["content"]
            specs = [{"description": "", **tool["function"]} for tool in tools]
            converted = [*self._renderer.create_conversation_prefix_with_tools(specs, system), *converted]
        try:
            prompt = self._renderer.build_generation_prompt(converted)
        except (ValueError, AssertionError, KeyError, TypeError) as error:
            raise RenderError(f"the renderer refused the messages: {error}") from error
        return self.decode(prompt.to_ints())

    def encode(self, text: str) -> list[int]:
        return list(self._tokenizer.encode(text, add_special_tokens=False))

    def decode(self, tokens: Sequence[int]) -> str:
        return str(self._tokenizer.decode(list(tokens)))

    def parse(self, tokens: Sequence[int], *, prompt_text: str, tools: Sequence[ToolDefinition] | None) -> ParsedReply:
        message, termination = self._renderer.parse_response(list(tokens))
        content, reasoning = _split(message.get("content"))
        calls: list[dict[str, Any]] = []
        unparsed = [{"raw_text": u.raw_text, "error": u.error} for u in message.get("unparsed_tool_calls") or []]
        for index, call in enumerate(message.get("tool_calls") or []):
            arguments, problem = _arguments(call.function.arguments)
            if problem is not None:
                unparsed.append({"raw_text": call.function.arguments, "error": problem})
                continue
            call_id = call.id or f"tinker-tool-call-{len(prompt_text)}-{index}"
            calls.append({"id": call_id, "name": call.function.name, "arguments": arguments})
        return ParsedReply(
            content=content,
            role=message.get("role", "assistant"),
            reasoning=reasoning or None,
            tool_calls=calls,
            unparsed=unparsed,
            success=bool(termination.is_clean),
        )


def _message(message: dict[str, Any]) -> dict[str, Any]:
    """A cleaned OpenAI message as the cookbook takes it."""
    converted: dict[str, Any] = {
        key: message[key] for key in ("role", "content", "name", "tool_call_id") if key in message
    }
    if message.get("reasoning_content"):
        parts = [{"type": "thinking", "thinking": message["reasoning_content"]}]
        if converted["content"]:
            parts.append({"type": "text", "text": converted["content"]})
        converted["content"] = parts
    if message.get("tool_calls"):
        from tinker_cookbook import renderers

        converted["tool_calls"] = [
            renderers.ToolCall(
                id=call.get("id"),
                function=renderers.ToolCall.FunctionBody(
                    name=call["function"]["name"],
                    arguments=json.dumps(call["function"]["arguments"], ensure_ascii=False),
                ),
            )
            for call in message["tool_calls"]
        ]
    return converted


def _split(content: Any) -> tuple[str, str]:
    """(text, reasoning) of a cookbook message's content."""
    if isinstance(content, str):
        return content, ""
    text: list[str] = []
    thinking: list[str] = []
    for part in content or []:
        if part.get("type") == "thinking":
            thinking.append(part["thinking"])
        else:
            text.append(part["text"] if part.get("type") == "text" else f"[{part.get('type')}]")
    return "".join(text), "".join(thinking)


def _arguments(text: str) -> tuple[dict[str, Any], str | None]:
    try:
        value = json.loads(text or "{}")
    except (ValueError, RecursionError) as error:
        return {}, str(error)
    return (value, None) if isinstance(value, dict) else ({}, f"arguments is a {type(value).__name__}, not an object")
