"""The shipped model: its files load, its tokenizer is exact, its template is read back."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from platoon.render.chat_template import ChatTemplateRenderer
from platoon.service.engines import load_engine
from platoon.service.numpy_engine import NumpyEngine

SPECIAL = [
    "<|endoftext|>",
    "<|im_start|>",
    "<|im_end|>",
    "<tool_call>",
    "</tool_call>",
    "<tool_response>",
    "</tool_response>",
]


@cache
def tiny() -> NumpyEngine:
    engine = load_engine("platoon-tiny")
    assert isinstance(engine, NumpyEngine)
    return engine


@cache
def renderer() -> ChatTemplateRenderer:
    return ChatTemplateRenderer(tiny().tokenizer_dir)


def test_the_model_fits_its_tokenizer_and_a_megabyte() -> None:
    assert tiny().vocab_size == renderer().tokenizer.vocab_size
    assert sum(file.stat().st_size for file in tiny().tokenizer_dir.iterdir()) < 1_000_000
    assert set(renderer().stop) == {renderer().encode("<|im_end|>")[0], renderer().encode("<|endoftext|>")[0]}
    for text in SPECIAL:
        assert len(renderer().encode(text)) == 1


@settings(max_examples=150, deadline=None)
@given(st.text(max_size=60), st.text(max_size=60))
def test_any_text_comes_back_and_turns_encode_apart(left: str, right: str) -> None:
    """A turn's end separates: what precedes it never changes the tokens of what follows."""
    for text in (left, right):
        assert renderer().decode(renderer().encode(text)) == text
    left, right = left + "<|im_end|>", "\n<|im_start|>user\n" + right
    assert renderer().encode(left) + renderer().encode(right) == renderer().encode(left + right)


def test_calls_are_rendered_as_they_are_sampled() -> None:
    assert renderer().record()["parser"] == "hermes"
    arguments = {"n": 7, "text": 'a "b"\nc', "ok": True, "many": [1, "zwei"], "none": None}
    sampled = (
        '<tool_call>\n{"name": "do", "arguments": {"n": 7, "text": "a \\"b\\"\\nc", "ok": true, '
        '"many": [1, "zwei"], "none": null}}\n</tool_call>'
    )
    message = {"role": "assistant", "content": "", "tool_calls": [{"function": {"name": "do", "arguments": arguments}}]}
    opening = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Go."}]
    tools: list[dict[str, Any]] = [
        {
            "type": "function",
            "function": {"name": "do", "description": "Does it.", "parameters": {"properties": {"n": {}}}},
        }
    ]
    before = renderer().render(opening, tools)
    assert before == (
        "<|im_start|>system\nBe brief.\nTools:\ndo(n): Does it.<|im_end|>\n"
        "<|im_start|>user\nGo.<|im_end|>\n<|im_start|>assistant\n"
    )
    after = renderer().render([*opening, message, {"role": "tool", "content": "Done."}], tools)
    assert after == before + sampled + "<|im_end|>\n<|im_start|>tool\nDone.<|im_end|>\n<|im_start|>assistant\n"
    parsed = renderer().parse(renderer().encode(sampled + "<|im_end|>"), prompt_text=before, tools=tools)
    assert [call["arguments"] for call in parsed.tool_calls] == [arguments]
    assert parsed.success


def test_stop_texts() -> None:
    prompt = renderer().encode("<|im_start|>user\nSay Ada.<|im_end|>\n<|im_start|>assistant\n")
    weights = tiny().weights(None)
    (free,) = tiny().sample(weights, prompt, num_samples=1, max_tokens=12, temperature=0, stop=renderer().stop)
    assert free.stop_reason == "stop"
    (cut,) = tiny().sample(weights, prompt, num_samples=1, max_tokens=12, temperature=0, stop=["<|im_end|>"])
    assert cut == free
    with pytest.raises(ValueError, match="non-empty texts"):
        tiny().sample(weights, prompt, num_samples=1, max_tokens=4, stop=[""])
