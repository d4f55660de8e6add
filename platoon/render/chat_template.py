"""The `chat_template` renderer: the model's own template and tokenizer, and a parser proved against them.

Messages go to the template as they are (OpenAI form), tools too. A request may switch `enable_thinking` and
`preserve_thinking`; nothing else changes between calls, and nothing here is changed by a call.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from platoon.config import ConfigError
from platoon.render.contract import Message, ParsedReply, RenderError, ToolDefinition
from platoon.render.messages import clean_messages
from platoon.render.parsers.base import ParsedText, UnparsedCall
from platoon.render.parsers.registry import Tags
from platoon.render.probe import choose_parser
from platoon.render.template import load_template
from platoon.render.tokenizer import Tokenizer

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class ChatTemplateOptions:
    """What `renderer_kwargs` may set. None leaves a switch to the template."""

    enable_thinking: bool = True
    preserve_thinking: bool | None = None
    reasoning_effort: str | None = None
    chat_template_kwargs: Mapping[str, Any] = field(default_factory=dict)
    tool_call_parser: str = "auto"
    reasoning_tags: Tags = "auto"

    def variables(self, overrides: Mapping[str, Any]) -> dict[str, Any]:
        """The template's variables for one call."""
        names = dict(self.chat_template_kwargs)
        names["enable_thinking"] = self.enable_thinking
        if self.preserve_thinking is not None:
            names["preserve_thinking"] = self.preserve_thinking
        if self.reasoning_effort is not None:
            names["reasoning_effort"] = self.reasoning_effort
        for key in ("enable_thinking", "preserve_thinking"):
            if overrides.get(key) is not None:
                names[key] = bool(overrides[key])
        return names


class ChatTemplateRenderer:
    """ConfigError at construction when the directory lacks a file or no parser reads what the template writes."""

    def __init__(self, directory: Path, options: ChatTemplateOptions | None = None) -> None:
        self.directory = directory
        self.options = options or ChatTemplateOptions()
        _check(self.options)
        self.tokenizer = Tokenizer(directory)
        self.stop = self.tokenizer.stop_tokens()
        self.template = load_template(directory, self.tokenizer.special_tokens)
        self._parse_failures = 0
        self._parser, self.parser_choice = choose_parser(
            self._probe_text,
            setting=self.options.tool_call_parser,
            reasoning_tags=self.options.reasoning_tags,
            stops=[self.decode([token]) for token in self.stop],
            model=str(directory),
        )

    def _probe_text(
        self, messages: Sequence[Message], tools: Sequence[ToolDefinition] | None, add_generation_prompt: bool
    ) -> str:
        return self.template.render(
            clean_messages(messages),
            tools,
            add_generation_prompt=add_generation_prompt,
            variables=self.options.variables({}),
        )

    def render(self, messages: Sequence[Message], tools: Sequence[ToolDefinition] | None, **overrides: Any) -> str:
        text = self.template.render(
            clean_messages(messages), tools, add_generation_prompt=True, variables=self.options.variables(overrides)
        )
        if not text:
            raise RenderError("the chat template rendered an empty prompt")
        return text

    def encode(self, text: str) -> list[int]:
        return self.tokenizer.encode(text)

    def decode(self, tokens: Sequence[int]) -> str:
        return self.tokenizer.decode(tokens)

    def parse(self, tokens: Sequence[int], *, prompt_text: str, tools: Sequence[ToolDefinition] | None) -> ParsedReply:
        """Text before the first stop token, read by the chosen parser. Ids of calls derive from prompt and text, so
        that equal samples give equal conversations."""
        end = next((index for index, token in enumerate(tokens) if token in self.stop), None)
        text = self.decode(tokens if end is None else tokens[:end])
        parsed = self._parse(text, prompt_text, tools)
        seed = hashlib.blake2b(prompt_text.encode("utf-8", "replace"), digest_size=12)
        seed.update(b"\0" + text.encode())
        calls: list[dict[str, Any]] = []
        for call in parsed.calls:
            seed.update(b"+")
            calls.append({"id": call.id or f"call_{seed.hexdigest()}", "name": call.name, "arguments": call.arguments})
        return ParsedReply(
            content=parsed.content,
            reasoning=parsed.reasoning,
            tool_calls=calls,
            unparsed=[{"raw_text": block.raw_text, "error": block.error} for block in parsed.unparsed],
            recovered=sum(call.recovered for call in parsed.calls),
            success=end is not None,
        )

    def _parse(self, text: str, prompt_text: str, tools: Sequence[ToolDefinition] | None) -> ParsedText:
        tags = self._parser.reasoning_tags
        in_reasoning = tags is not None and prompt_text.endswith(tags[0], 0, _content_end(prompt_text))
        try:
            return self._parser.parse(text, tools=tools, in_reasoning=in_reasoning)
        # The one broad except of this room: a parser may be a user's, and a reply that it cannot read is still a
        # reply. It becomes one unparsed block, never a failed call.
        except Exception as error:
            self._parse_failures += 1
            if self._parse_failures <= 3 or self._parse_failures % 1000 == 0:
                log.exception("tool-call parser %s failed (%d so far)", self.parser_choice.parser, self._parse_failures)
            return ParsedText("", unparsed=(UnparsedCall(text, f"{type(error).__name__}: {error}"),))

    def record(self) -> dict[str, Any]:
        """How replies are parsed, for a run's lock: {setting, parser, verified, reason}."""
        return asdict(self.parser_choice)


def _content_end(text: str) -> int:
    """Length of the text without trailing whitespace; does not copy it."""
    end = len(text)
    while end > 0 and text[end - 1].isspace():
        end -= 1
    return end


def _check(options: ChatTemplateOptions) -> None:
    wanted: tuple[tuple[str, Any, str], ...] = (
        ("enable_thinking", bool, "true or false"),
        ("preserve_thinking", bool | None, "true, false or null"),
        ("reasoning_effort", str | None, "text or null"),
        ("chat_template_kwargs", Mapping, "a map"),
        ("tool_call_parser", str, "a parser's name"),
    )
    problems = [
        f"renderer_kwargs.{name} is {getattr(options, name)!r}; expected {what}"
        for name, kind, what in wanted
        if not isinstance(getattr(options, name), kind)
    ]
    if problems:
        raise ConfigError(problems)
