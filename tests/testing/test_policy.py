"""The scripted policy behaves as a sampler does."""

from __future__ import annotations

import asyncio
import json

import pytest

from platoon.gateway import SamplingParams
from platoon.testing import (
    TOY_EOS,
    Completion,
    ScriptedPolicy,
    ScriptExhaustedError,
    last_user_message,
    rules,
    tool_call,
    toy_renderer,
    toy_tokenizer,
)

PARAMS = SamplingParams(100, stop=(TOY_EOS,))


def prompt(*texts: str) -> list[int]:
    messages = [{"role": "user" if i % 2 == 0 else "assistant", "content": text} for i, text in enumerate(texts)]
    return toy_tokenizer().encode(toy_renderer().render(messages, None))


async def test_a_script_is_used_in_order_and_ends() -> None:
    policy = ScriptedPolicy(["a", Completion("b", stop_reason="length", routing_id=3, logprob=-1.0)])
    first, second = [await policy.sample(prompt("hi"), PARAMS) for _ in range(2)]
    assert (first.tokens, first.logprobs, first.stop_reason, first.routing_id) == (
        [97, TOY_EOS],
        [-0.25, -0.25],
        "stop",
        None,
    )
    assert (second.tokens, second.logprobs, second.stop_reason, second.routing_id) == ([98], [-1.0], "length", 3)
    assert policy.remaining == 0
    with pytest.raises(ScriptExhaustedError, match="2 replies"):
        await policy.sample(prompt("hi"), PARAMS)
    assert [call.completion.text for call in policy.calls] == ["a", "b"]
    assert policy.calls[0].last_user_message == "hi"
    assert policy.prompts[0].endswith("<|im_start|>assistant\n")
    assert policy.calls[0].tokens == (97, TOY_EOS)


async def test_a_reply_is_cut_at_max_tokens() -> None:
    sampled = await ScriptedPolicy(["abc"]).sample(prompt("hi"), SamplingParams(3, stop=(TOY_EOS,)))
    assert (sampled.tokens, sampled.stop_reason) == ([97, 98, 99], "length")


async def test_a_string_stop_ends_a_reply_without_a_stop_token() -> None:
    sampled = await ScriptedPolicy(["abc\n"]).sample(prompt("hi"), SamplingParams(9, stop=("\n",)))
    assert (sampled.tokens, sampled.stop_reason) == ([97, 98, 99, 10], "stop")


async def test_a_delay_is_the_tests_to_end() -> None:
    release = asyncio.Event()
    policy = ScriptedPolicy([Completion("a", delay=release.wait)])
    task = asyncio.create_task(policy.sample(prompt("hi"), PARAMS))
    await asyncio.sleep(0)
    assert not task.done()
    release.set()
    assert (await task).tokens == [97, TOY_EOS]


async def test_rules_look_at_the_last_user_message() -> None:
    policy = ScriptedPolicy(rules({"two": "2", "one": lambda text: Completion(str(text.count("one")))}, default="?"))
    answers = [
        bytes((await policy.sample(prompt(*texts), PARAMS)).tokens[:-1])
        for texts in (("one",), ("one", "x", "two"), ("two", "x", "one one"), ("three",))
    ]
    assert answers == [b"1", b"2", b"2", b"?"]
    with pytest.raises(ScriptExhaustedError, match="three"):
        await ScriptedPolicy(rules({"one": "1"})).sample(prompt("three"), PARAMS)


async def test_an_exception_in_a_script_is_raised() -> None:
    with pytest.raises(ConnectionError):
        await ScriptedPolicy([ConnectionError()]).sample(prompt("hi"), PARAMS)


def test_last_user_message() -> None:
    text = toy_renderer().render(
        [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}, {"role": "tool", "content": "c"}],
        None,
    )
    assert last_user_message(text) == "\n<tool_response>\nc\n</tool_response>".lstrip("\n")
    assert last_user_message("nothing") == ""


def test_tool_call_is_what_the_parser_reads() -> None:
    text = tool_call("f", {"name": "é"}, x=[1])
    assert json.loads(text.removeprefix("<tool_call>\n").removesuffix("\n</tool_call>")) == {
        "name": "f",
        "arguments": {"name": "é", "x": [1]},
    }
    parsed = toy_renderer().parse(toy_tokenizer().encode(text), prompt_text="", tools=None)
    assert [(call["name"], call["arguments"]) for call in parsed.tool_calls] == [("f", {"name": "é", "x": [1]})]
