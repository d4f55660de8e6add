"""The hermes parser: round trips, damage, and text that no model should write."""

from __future__ import annotations

import time
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from platoon.render import Renderer
from platoon.render.parsers import ParsedText, find_parser
from platoon.testing import TOY_EOS, tool_call, toy_renderer

OPEN, CLOSE = "<tool_call>", "</tool_call>"
RENDERER = toy_renderer()
PARSER = find_parser("hermes")
PROMPT = "<|im_start|>assistant\n"

TEXT = st.text(st.characters(codec="utf-8"), max_size=30)
PIECES = st.sampled_from(
    [
        OPEN,
        CLOSE,
        "<think>",
        "</think>",
        "\n",
        " ",
        "{",
        "}",
        "[",
        '"',
        ":",
        ",",
        "\\",
        "name",
        "1",
        '{"name": "f"}',
        "a",
    ]
)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=6,
)
CALLS = st.tuples(TEXT.filter(bool), st.dictionaries(TEXT, VALUES, max_size=3))


def parse(text: str, **options: Any) -> ParsedText:
    return PARSER.parse(text, **options)


def plain(text: str) -> bool:
    return not any(tag in text for tag in (OPEN, CLOSE, "<think>", "</think>", "<|"))


def read(renderer: Renderer, text: str) -> Any:
    return renderer.parse([*renderer.encode(text), TOY_EOS], prompt_text=PROMPT, tools=None)


@settings(max_examples=150, deadline=None)
@given(
    content=TEXT.map(str.strip).filter(plain),
    reasoning=TEXT.map(str.strip).filter(plain),
    calls=st.lists(CALLS, max_size=3),
)
def test_what_the_template_writes_is_read_back(
    content: str, reasoning: str, calls: list[tuple[str, dict[str, Any]]]
) -> None:
    reply = {
        "role": "assistant",
        "content": content,
        "reasoning_content": reasoning,
        "tool_calls": [{"function": {"name": name, "arguments": arguments}} for name, arguments in calls],
    }
    user = {"role": "user", "content": "go"}
    before = RENDERER.render([user], None)
    after = RENDERER.render([user, reply, user], None)
    sampled = after[len(before) : after.rindex("<|im_end|>\n<|im_start|>user")]
    parsed = read(RENDERER, sampled)
    assert [(call["name"], call["arguments"]) for call in parsed.tool_calls] == calls
    assert (parsed.content, parsed.reasoning or "") == (content, reasoning)
    assert (parsed.unparsed, parsed.recovered, parsed.success) == ([], 0, True)


@settings(max_examples=300, deadline=None)
@given(st.lists(PIECES | TEXT, max_size=25).map("".join), st.booleans())
@example(f"{OPEN}1{OPEN}{CLOSE}", False)
def test_no_text_raises_and_no_text_is_lost(text: str, in_reasoning: bool) -> None:
    parsed = parse(text, in_reasoning=in_reasoning)
    kept = len(parsed.content) + len(parsed.reasoning or "") + sum(len(block.raw_text) for block in parsed.unparsed)
    assert kept <= len(text)
    if (
        not parsed.calls
        and not in_reasoning
        and OPEN not in text
        and not text.lstrip().startswith(("<think>", "</think>"))
    ):
        assert parsed.content == text.strip()


@settings(max_examples=100, deadline=None)
@given(st.lists(st.integers(0, 264), max_size=60))
def test_no_tokens_raise(tokens: list[int]) -> None:
    RENDERER.parse(tokens, prompt_text=PROMPT, tools=None)


@pytest.mark.parametrize(
    ("text", "calls", "content", "recovered", "unparsed"),
    [
        (tool_call("f", a=1), [("f", {"a": 1})], "", 0, 0),
        (f"hi\n{tool_call('f')}\nbye", [("f", {})], "hi\n\nbye", 0, 0),
        (f'{OPEN}{{"name": "f", "parameters": {{"a": 1}}}}{CLOSE}', [("f", {"a": 1})], "", 0, 0),
        (f'{OPEN}[{{"name": "f"}}, {{"name": "g"}}]{CLOSE}', [("f", {}), ("g", {})], "", 0, 0),
        (f'{OPEN}{{"name": "f", "arguments": "{{\\"a\\": 1}}"}}{CLOSE}', [("f", {"a": 1})], "", 1, 0),
        (f'{OPEN}{{"name": "f"}}\n{{"name": "g"}}{CLOSE}', [("f", {}), ("g", {})], "", 2, 0),
        (f'{OPEN}{{"name": "f"}}', [("f", {})], "", 1, 0),
        (f'{OPEN}{{"name": "f"}} and so{CLOSE}', [("f", {})], "and so", 1, 0),
        (f'{OPEN}{{"name": "f"}}\n{OPEN}{{"name": "g"}}{CLOSE}', [("f", {}), ("g", {})], "", 1, 0),
        (f'{OPEN}{{"name": "f", "arguments": {{"a": "x\ny"}}}}{CLOSE}', [("f", {"a": "x\ny"})], "", 1, 0),
        (tool_call("f", text=f"say {CLOSE} now"), [("f", {"text": f"say {CLOSE} now"})], "", 0, 0),
        (f"I would write {OPEN} here", [], f"I would write {OPEN} here", 0, 0),
        (f"  {OPEN}nothing{CLOSE} rest", [], "rest", 0, 1),
        (f'{OPEN}{{"name": ""}}{CLOSE}', [], "", 0, 1),
        (f'{OPEN}{{"arguments": {{}}}}{CLOSE}', [], "", 0, 1),
        (f"{OPEN}[]{CLOSE}", [], "", 0, 1),
        (f'{OPEN}{{"name": "f", "arguments": {{"a": "\\ud800"}}}}{CLOSE}', [], "", 0, 1),
        (f'{OPEN}{{"name": "f", "arguments": {"[" * 2000}{"]" * 2000}}}{CLOSE}', [], "", 0, 1),
        (f'{OPEN}{{"name": "f", "arguments": {{"a": {"9" * 5000}}}}}{CLOSE}', [], "", 0, 1),
    ],
)
def test_damage(text: str, calls: list[Any], content: str, recovered: int, unparsed: int) -> None:
    parsed = parse(text)
    assert [(call.name, call.arguments) for call in parsed.calls] == calls
    assert parsed.content == content
    assert sum(call.recovered for call in parsed.calls) == recovered
    assert len(parsed.unparsed) == unparsed


@pytest.mark.parametrize(
    ("text", "in_reasoning", "reasoning", "content"),
    [
        ("<think>\na\n</think>\n\nb", False, "a", "b"),
        ("a\n</think>\n\nb", True, "a", "b"),
        ("<think>\n<think>\na</think>b", True, "a", "b"),
        ("</think>b", False, None, "b"),
        ("<think></think>b", False, None, "b"),
        ("b <think>a</think>", False, None, "b <think>a</think>"),
        ("only thoughts", True, "only thoughts", ""),
        ("<think>only thoughts", False, "only thoughts", ""),
        (f'thoughts\n{OPEN}\n{{"name": "f"}}\n{CLOSE}', True, "thoughts", ""),
        (f"thoughts of {OPEN} only", True, f"thoughts of {OPEN} only", ""),
        ("", True, None, ""),
    ],
)
def test_reasoning(text: str, in_reasoning: bool, reasoning: str | None, content: str) -> None:
    parsed = parse(text, in_reasoning=in_reasoning)
    assert (parsed.reasoning, parsed.content) == (reasoning, content)


def test_other_reasoning_tags_and_none() -> None:
    tags = find_parser("hermes", ["[A]", "[/A]"])
    assert tags.parse("[A]x[/A]y").reasoning == "x"
    off = find_parser("hermes", "none")
    assert off.parse("<think>x</think>y").content == "<think>x</think>y"


DEGENERATE = [
    OPEN,
    CLOSE,
    OPEN + "\n",
    OPEN + "{",
    OPEN + '{"',
    OPEN + '["a","',
    OPEN + '{"name": "f"}',
    OPEN + '{"name": "f"',
    "<think>",
    " \t",
    "[",
    '{"a":',
    OPEN + " " * 50,
]


@pytest.mark.parametrize("unit", DEGENERATE)
def test_repetition_takes_linear_time(unit: str) -> None:
    """Twenty times the text may take far less than four hundred times the time."""

    def seconds(length: int) -> float:
        text = OPEN + unit * (length // len(unit))
        best = float("inf")
        for _ in range(3):
            started = time.process_time()
            parse(text)
            best = min(best, time.process_time() - started)
        return best

    small, large = seconds(10_000), seconds(200_000)
    assert large < 80 * max(small, 0.0005)
