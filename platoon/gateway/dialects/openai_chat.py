"""OpenAI Chat Completions.

Every field of OpenAI's schema is honoured, accepted as harmless, or refused with its name; fields outside the schema
are ignored.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from typing import Any

from platoon.gateway.dialects.base import Decode
from platoon.gateway.errors import ErrorKind, RequestError, error_kind
from platoon.gateway.request import ChatRequest
from platoon.gateway.response import ChatResponse

SAMPLING = (
    "max_tokens",
    "max_completion_tokens",
    "temperature",
    "top_p",
    "top_k",
    "seed",
    "stop",
    "tool_choice",
    "reasoning_effort",
    "chat_template_kwargs",
    "extra_body",
)
# Fields that do not change what a reply says: bookkeeping, caching, placement.
HARMLESS = (
    "metadata",
    "prediction",
    "prompt_cache_key",
    "prompt_cache_options",
    "prompt_cache_retention",
    "safety_identifier",
    "service_tier",
    "user",
)
# Fields that the gateway cannot honour, with the values that ask for nothing.
REFUSED: Mapping[str, tuple[Any, ...]] = {
    "audio": (),
    "frequency_penalty": (0,),
    "function_call": ("auto", "none"),
    "functions": ([],),
    "logit_bias": ({},),
    "modalities": (["text"],),
    "moderation": (),
    "n": (1,),
    "parallel_tool_calls": (True,),
    "presence_penalty": (0,),
    "response_format": ({"type": "text"},),
    "store": (False,),
    "top_logprobs": (0,),
    "verbosity": ("medium",),
    "web_search_options": (),
}

_STATUS: Mapping[ErrorKind, tuple[int, str, str | None]] = {
    "authentication": (401, "invalid_request_error", "invalid_api_key"),
    "permission": (403, "permission_error", "permission_denied"),
    "agent_closed": (410, "invalid_request_error", "agent_closed"),
    "context_length": (400, "invalid_request_error", "context_length_exceeded"),
    "invalid_request": (400, "invalid_request_error", None),
    "timeout": (504, "timeout", "sample_timeout"),
    "server": (500, "server_error", None),
}


class OpenAIChat:
    """The dialect of `/v1/chat/completions`."""

    def request(self, body: dict[str, Any]) -> ChatRequest:
        _check_fields(body)
        messages = _messages(body.get("messages"))
        sampling = {key: body[key] for key in SAMPLING if body.get(key) is not None}
        if isinstance(sampling.get("stop"), str):
            sampling["stop"] = [sampling["stop"]]
        return ChatRequest(messages, body.get("tools"), sampling)

    def body(self, response: ChatResponse, asked: dict[str, Any], decode: Decode, model: str) -> dict[str, Any]:
        message = dict(response.message)
        if message.get("tool_calls") and not message["content"]:
            message["content"] = None
        choice = {
            "index": 0,
            "message": message,
            "logprobs": _logprobs(response, decode) if asked.get("logprobs") else None,
            "finish_reason": response.finish_reason,
        }
        return {
            "id": response.call_id,
            "object": "chat.completion",
            "created": int(time.time()),
            "model": model,
            "choices": [choice],
            "usage": response.usage.record(),
        }

    def events(self, response: ChatResponse, asked: dict[str, Any], decode: Decode, model: str) -> Iterator[str]:
        with_usage = bool((asked.get("stream_options") or {}).get("include_usage"))
        frame: dict[str, Any] = {
            "id": response.call_id,
            "object": "chat.completion.chunk",
            "created": int(time.time()),
            "model": model,
        }
        if with_usage:
            frame["usage"] = None

        def chunk(delta: dict[str, Any], **rest: Any) -> str:
            choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": None, **rest}
            return _data({**frame, "choices": [choice]})

        message = response.message
        yield chunk({"role": message["role"], "content": ""})
        if message.get("reasoning_content"):
            yield chunk({"reasoning_content": message["reasoning_content"]})
        if message["content"]:
            yield chunk({"content": message["content"]})
        for index, call in enumerate(message.get("tool_calls") or []):
            yield chunk({"tool_calls": [{"index": index, **call}]})
        logprobs = _logprobs(response, decode) if asked.get("logprobs") else None
        yield chunk({}, finish_reason=response.finish_reason, logprobs=logprobs)
        if with_usage:
            yield _data({**frame, "choices": [], "usage": response.usage.record()})
        yield "data: [DONE]\n\n"

    def error(self, error: BaseException) -> tuple[int, dict[str, Any]]:
        kind = error_kind(error)
        status, type_name, code = _STATUS[kind]
        message = str(error) or type(error).__name__
        if kind == "server":
            message = f"{type(error).__name__}: {error}"
        param = "messages" if kind == "context_length" else getattr(error, "param", None)
        return status, {"error": {"message": message, "type": type_name, "param": param, "code": code}}

    def error_event(self, error: BaseException) -> str:
        return _data(self.error(error)[1])


def _data(value: dict[str, Any]) -> str:
    return f"data: {json.dumps(value)}\n\n"


def _check_fields(body: dict[str, Any]) -> None:
    for key, neutral in REFUSED.items():
        value = body.get(key)
        if value is None or any(value == same and type(value) is type(same) for same in neutral):
            continue
        if key in ("frequency_penalty", "presence_penalty") and value == 0:
            continue
        raise RequestError(f"{key} is not supported by this server; leave it out", key)
    for key in ("stream", "logprobs"):
        if not isinstance(body.get(key), bool | None):
            raise RequestError(f"{key} is {body[key]!r}; expected true or false", key)
    if not isinstance(body.get("stream_options"), dict | None):
        raise RequestError(f"stream_options is {body['stream_options']!r}; expected an object", "stream_options")
    if not isinstance(body.get("model"), str | None):
        raise RequestError(f"model is {body['model']!r}; expected text", "model")


def _messages(messages: Any) -> list[dict[str, Any]]:
    if not isinstance(messages, list) or not messages:
        raise RequestError("messages must be a non-empty list", "messages")
    out: list[dict[str, Any]] = []
    for index, message in enumerate(messages):
        if not isinstance(message, dict) or not isinstance(message.get("role"), str):
            raise RequestError(f"messages[{index}] must be an object with a string role", "messages")
        out.append({**message, "role": "system"} if message["role"] == "developer" else message)
    return out


def _logprobs(response: ChatResponse, decode: Decode) -> dict[str, Any]:
    """One entry a sampled token. A token that is part of a character has U+FFFD as its text."""
    entries: list[dict[str, Any]] = []
    for token, logprob in zip(response.tokens, response.logprobs, strict=True):
        text = decode([token])
        entries.append(
            {
                "token": text,
                "logprob": float(logprob),
                "bytes": list(text.encode()) if "\ufffd" not in text else None,
                "top_logprobs": [],
            }
        )
    return {"content": entries, "refusal": None}
