"""Renderers: messages to prompt tokens and sampled tokens back to messages."""

from platoon.render.build import PRESETS, build_renderer, tool_call_parsing
from platoon.render.chat_template import ChatTemplateOptions, ChatTemplateRenderer
from platoon.render.contract import Message, ParsedReply, Renderer, RenderError, ToolDefinition
from platoon.render.models import model_directory
from platoon.render.tokenizer import Tokenizer

__all__ = [
    "PRESETS",
    "ChatTemplateOptions",
    "ChatTemplateRenderer",
    "Message",
    "ParsedReply",
    "RenderError",
    "Renderer",
    "Tokenizer",
    "ToolDefinition",
    "build_renderer",
    "model_directory",
    "tool_call_parsing",
]
