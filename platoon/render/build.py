"""A renderer by name: `chat_template`, its presets, or a tinker-cookbook renderer when the extra is installed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from importlib.util import find_spec
from typing import Any

from platoon.config import ConfigError
from platoon.render.chat_template import ChatTemplateOptions, ChatTemplateRenderer
from platoon.render.contract import Renderer
from platoon.render.cookbook import CookbookRenderer
from platoon.render.models import model_directory

PRESETS: Mapping[str, Mapping[str, Any]] = {
    "chat_template": {},
    "qwen3_6_preserve_thinking": {"preserve_thinking": True},
    "qwen3_6_preserve_thinking_disable_thinking": {"preserve_thinking": True, "enable_thinking": False},
    "qwen3_8_preserve_thinking": {"preserve_thinking": True, "reasoning_effort": "xhigh"},
    "qwen3_8_preserve_thinking_disable_thinking": {
        "preserve_thinking": True,
        "reasoning_effort": "xhigh",
        "enable_thinking": False,
    },
}


def tool_call_parsing(
    model_name: str, renderer_name: str, renderer_kwargs: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """`{"tool_call_parsing": …}` for `lock.json`: how the renderer reads tool calls; {} for one that does not say."""
    renderer = build_renderer(model_name, renderer_name, renderer_kwargs)
    record = getattr(renderer, "record", None)
    if not callable(record):
        return {}
    return {"tool_call_parsing": {"model_name": model_name, "renderer_name": renderer_name, **record()}}


def build_renderer(
    model_name: str, renderer_name: str = "chat_template", renderer_kwargs: Mapping[str, Any] | None = None
) -> Renderer:
    """Loads tokenizer and template and proves the parser. ConfigError names the key, the file or the remedy."""
    kwargs = dict(renderer_kwargs or {})
    if renderer_name not in PRESETS:
        if find_spec("tinker_cookbook") is None:
            raise ConfigError(
                [
                    f"renderer_name {renderer_name!r} is none of {', '.join(PRESETS)}; renderers of tinker-cookbook "
                    "need the extra: pip install 'platoon[tinker]'"
                ]
            )
        return CookbookRenderer(model_name, renderer_name, kwargs)
    known = [field.name for field in fields(ChatTemplateOptions)]
    unknown = sorted(set(kwargs) - set(known))
    if unknown:
        raise ConfigError(
            [f"renderer_kwargs.{key} is no setting of {renderer_name}; there are {', '.join(known)}" for key in unknown]
        )
    options = ChatTemplateOptions(**{**PRESETS[renderer_name], **kwargs})
    return ChatTemplateRenderer(model_directory(model_name), options)
