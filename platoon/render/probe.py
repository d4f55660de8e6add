"""Which parser reads a template: write a known conversation with the template, parse it back, compare.

The conversation holds reasoning, text and three calls whose arguments cover the types that formats confuse. A parser
passes only if everything comes back equal and nothing was recovered or unparsed.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from platoon.config import ConfigError
from platoon.render.contract import RenderError
from platoon.render.parsers.base import ToolCallParser
from platoon.render.parsers.registry import PARSERS, Tags, find_parser

log = logging.getLogger(__name__)

RenderProbe = Callable[[Sequence[Mapping[str, Any]], Sequence[Mapping[str, Any]] | None, bool], str]

REASONING = "The user wants three things, so call three functions."
TEXT = "Sure."
_SCHEMAS: dict[str, dict[str, Any]] = {
    "move_to": {"row": {"type": "integer"}, "note": {"type": "string"}},
    "write_lines": {
        "body": {"type": "string"},
        "code": {"type": "string"},
        "flag": {"type": "string"},
        "names": {"type": "array", "items": {"type": "string"}},
        "force": {"type": "boolean"},
    },
    "finish_now": {},
}
_CALLS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("move_to", {"row": 7, "note": "left side"}),
    (
        "write_lines",
        {"body": "def f():\n    return 1\n", "code": "0042", "flag": "true", "names": ["a", "b c"], "force": True},
    ),
    ("finish_now", {}),
)
TOOLS: list[dict[str, Any]] = [
    {
        "type": "function",
        "function": {
            "name": name,
            "description": f"Does {name}.",
            "parameters": {"type": "object", "properties": properties, "required": list(properties)},
        },
    }
    for name, properties in _SCHEMAS.items()
]
_OPENING: list[dict[str, Any]] = [
    {"role": "system", "content": "You are a careful robot."},
    {"role": "user", "content": "Please begin."},
]


@dataclass(frozen=True)
class ParserChoice:
    """`verified`: True, False for a named parser that failed the probe, None when there was nothing to probe."""

    setting: str
    parser: str
    verified: bool | None
    reason: str


@dataclass(frozen=True)
class _Turn:
    """One assistant turn as the template writes it: the prompt's tail, and what a model would have sampled."""

    prompt: str
    sampled: str
    calls: tuple[tuple[str, dict[str, Any]], ...]


def choose_parser(
    render: RenderProbe, *, setting: str, reasoning_tags: Tags, stops: Sequence[str], model: str
) -> tuple[ToolCallParser, ParserChoice]:
    """The parser of a template. ConfigError when `auto` finds none and the template shows tools."""
    if setting == "none":
        return find_parser("none", reasoning_tags), ParserChoice(
            setting, "none", None, "set by name; no tool calls are read"
        )
    turns = _probe_turns(render, stops)
    if setting != "auto":
        parser = find_parser(setting, reasoning_tags)
        name = parser.name if parser.name != "none" else setting
        problem = "the template cannot render the probe" if turns is None else _mismatch(parser, turns)
        if problem is not None:
            log.warning("tool_call_parser %s does not read what the template of %s writes: %s", setting, model, problem)
        verified = None if turns is None else problem is None
        return parser, ParserChoice(setting, name, verified, problem or "set by name; reads back the template's calls")
    if not _shows_tools(render):
        log.warning("the template of %s shows no tools; replies are read without tool calls", model)
        reason = "the template shows no tools"
        return find_parser("none", reasoning_tags), ParserChoice(setting, "none", None, reason)
    results: list[str] = []
    for cls in PARSERS:
        parser = find_parser(cls.name, reasoning_tags)
        problem = "the template cannot render the probe" if turns is None else _mismatch(parser, turns)
        if problem is None:
            return parser, ParserChoice(setting, cls.name, True, "reads back the template's calls")
        results.append(f"{cls.name}: {problem}")
    raise ConfigError(
        [
            f"no tool-call parser reads what the chat template of {model} writes ({'; '.join(results)}); "
            "set renderer_kwargs.tool_call_parser to a parser's name, to package.module:attr, or to none"
        ]
    )


def _shows_tools(render: RenderProbe) -> bool:
    try:
        return render(_OPENING, TOOLS, True) != render(_OPENING, None, True)
    except RenderError:
        return False


def _probe_turns(render: RenderProbe, stops: Sequence[str]) -> list[_Turn] | None:
    """One turn with all calls, else one turn a call; None when the template can render neither."""
    for groups in ([_CALLS], [(call,) for call in _CALLS]):
        for make_id in (
            lambda name, i: f"functions.{name}:{i}",
            lambda name, i: f"{name.replace('_', '')[:6]:0<6}{i:03d}",
        ):
            try:
                return [_turn(render, calls, make_id, stops) for calls in groups]
            except RenderError:
                continue
    return None


def _turn(
    render: RenderProbe,
    calls: tuple[tuple[str, dict[str, Any]], ...],
    make_id: Callable[[str, int], str],
    stops: Sequence[str],
) -> _Turn:
    tool_calls = [
        {"id": make_id(name, i), "type": "function", "function": {"name": name, "arguments": arguments}}
        for i, (name, arguments) in enumerate(calls)
    ]
    reply = {"role": "assistant", "content": TEXT, "reasoning_content": REASONING, "tool_calls": tool_calls}
    prompt = render(_OPENING, TOOLS, True)
    full = render([*_OPENING, reply], TOOLS, False)
    shared = next(
        (i for i, (a, b) in enumerate(zip(prompt, full, strict=False)) if a != b), min(len(prompt), len(full))
    )
    prompt = full[:shared]
    sampled = full[len(prompt) :]
    cuts = [cut for stop in stops if stop and (cut := sampled.find(stop)) >= 0]
    return _Turn(prompt, sampled[: min(cuts)] if cuts else sampled, calls)


def _mismatch(parser: ToolCallParser, turns: Sequence[_Turn]) -> str | None:
    """None when the parser reads every turn back, else what it made of the first that it did not."""
    for turn in turns:
        tags = parser.reasoning_tags
        in_reasoning = tags is not None and turn.prompt.rstrip().endswith(tags[0])
        got = parser.parse(turn.sampled, tools=TOOLS, in_reasoning=in_reasoning)
        read = [(call.name, call.arguments) for call in got.calls]
        if json.dumps(read) != json.dumps(list(turn.calls)):
            return f"read the calls {read} instead of {list(turn.calls)}"
        if got.unparsed or any(call.recovered for call in got.calls):
            return f"left {len(got.unparsed)} calls unparsed and recovered {sum(c.recovered for c in got.calls)}"
        if got.content != (TEXT if TEXT in turn.sampled else ""):
            return f"read the content {got.content!r}"
        if got.reasoning != (REASONING if REASONING in turn.sampled and tags is not None else None):
            return f"read the reasoning {got.reasoning!r}"
    return None
