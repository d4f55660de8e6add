"""The chat-template renderer: rendering, clean-up, stop tokens, parser choice."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from platoon.config import ConfigError
from platoon.render import (
    PRESETS,
    ChatTemplateOptions,
    ChatTemplateRenderer,
    Renderer,
    RenderError,
    build_renderer,
    model_directory,
)
from platoon.render.parsers import ParsedText
from platoon.testing import TOY_EOS, TOY_TOKENIZER_DIR, toy_renderer, toy_tokenizer

HELLO: list[dict[str, Any]] = [{"role": "user", "content": "hello"}]
TEMPLATE = (TOY_TOKENIZER_DIR / "chat_template.jinja").read_text()


@pytest.fixture
def model(tmp_path: Path) -> Callable[..., Path]:
    """A copy of the toy model with files replaced (text), or removed (None)."""

    def make(**files: str | None) -> Path:
        directory = tmp_path / "model"
        shutil.copytree(TOY_TOKENIZER_DIR, directory, dirs_exist_ok=True)
        for key, text in files.items():
            path = directory / {"template": "chat_template.jinja"}.get(key, f"{key}.json")
            path.unlink() if text is None else path.write_text(text)
        return directory

    return make


def test_every_byte_is_a_token_of_its_number() -> None:
    tokenizer = toy_tokenizer()
    assert tokenizer.encode("é\n") == [0xC3, 0xA9, 10]
    text = "".join(map(chr, range(128))) + "<think>é漢😀</think><|im_end|>"
    assert tokenizer.decode(tokenizer.encode(text)) == text
    assert tokenizer.encode("<|endoftext|><|im_start|><|im_end|>") == [256, 257, 258]
    tags = ["<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>", "<think>", "</think>"]
    assert tokenizer.encode("".join(tags)) == list(range(259, 265))


def test_presets_set_what_they_say(model: Callable[..., Path]) -> None:
    directory = str(model(template="{{ enable_thinking }} {{ preserve_thinking }} {{ reasoning_effort }} {{ extra }}"))

    def shown(name: str, overrides: Mapping[str, Any] | None = None, **kwargs: Any) -> str:
        return build_renderer(directory, name, kwargs).render(HELLO, None, **(overrides or {}))

    assert shown("chat_template") == "True   "
    assert shown("qwen3_6_preserve_thinking") == "True True  "
    assert shown("qwen3_6_preserve_thinking_disable_thinking") == "False True  "
    assert shown("qwen3_8_preserve_thinking") == "True True xhigh "
    assert shown("qwen3_8_preserve_thinking_disable_thinking") == "False True xhigh "
    assert shown("chat_template", chat_template_kwargs={"extra": 5}, reasoning_effort="low") == "True  low 5"
    assert shown("qwen3_6_preserve_thinking", {"enable_thinking": False, "preserve_thinking": False}) == "False False  "
    assert shown("chat_template", {"unknown": 1, "enable_thinking": None}) == "True   "


@pytest.mark.parametrize(
    ("kwargs", "named"),
    [
        ({"nonsense": 1}, "renderer_kwargs.nonsense"),
        ({"enable_thinking": None}, "renderer_kwargs.enable_thinking"),
        ({"preserve_thinking": "yes"}, "renderer_kwargs.preserve_thinking"),
        ({"chat_template_kwargs": []}, "renderer_kwargs.chat_template_kwargs"),
        ({"tool_call_parser": "glm45"}, r"glm45.*hermes \(qwen25, qwen\)"),
        ({"tool_call_parser": "no.such.module:attr"}, "cannot be loaded"),
        ({"reasoning_tags": ["<a>"]}, "renderer_kwargs.reasoning_tags"),
    ],
)
def test_bad_renderer_kwargs_are_named(kwargs: dict[str, Any], named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        toy_renderer(**kwargs)


def test_an_unknown_renderer_names_the_presets() -> None:
    with pytest.raises(ConfigError, match="chat_template"):
        build_renderer("platoon/toy", "no_such_renderer", {})


def test_content_is_cleaned_and_left_untouched() -> None:
    renderer = toy_renderer()
    messages: list[dict[str, Any]] = [
        {"role": "user", "content": ["a", {"type": "text", "text": "b"}]},
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [{"id": "1", "name": "f", "arguments": '{"x": "é"}'}],
        },
        {"role": "assistant", "content": [{"type": "thinking", "thinking": "t"}, {"type": "text", "text": "c"}]},
        {"role": "assistant", "content": "d", "tool_calls": []},
    ]
    before = json.dumps(messages)
    text = renderer.render(messages, None)
    assert json.dumps(messages) == before
    assert "user\nab<|im_end|>" in text
    assert 'assistant\n<tool_call>\n{"name": "f", "arguments": {"x": "é"}}\n</tool_call><|im_end|>' in text
    assert "<think>t</think>c" in text
    assert text.count("<tool_call>") == 1


@pytest.mark.parametrize(
    "message",
    [
        {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]},
        {"role": "user", "content": [{"type": "mystery"}]},
        {"role": "user", "content": 5},
        {"content": "x"},
        "text",
        {"role": "assistant", "content": "", "tool_calls": "f"},
        {"role": "assistant", "content": "", "tool_calls": [{"arguments": "{}"}]},
        {"role": "assistant", "content": "", "tool_calls": [{"name": "f", "arguments": "{"}]},
        {"role": "assistant", "content": "", "tool_calls": [{"name": "f", "arguments": "[1]"}]},
    ],
)
def test_what_cannot_be_shown_is_refused_with_its_place(message: Any) -> None:
    with pytest.raises(RenderError, match=r"messages\[1\]"):
        toy_renderer().render([*HELLO, message], None)


def test_a_template_speaks_for_itself(model: Callable[..., Path]) -> None:
    source = "{%- if messages|length > 1 %}{{ raise_exception('one at a time') }}{% endif %}{{ eos_token }}"
    source += "{% for m in messages %}{% if loop.index > 5 %}{% break %}{% endif %}{% generation %}{{ m | tojson }}"
    source += "{% endgeneration %}{% endfor %}{{ strftime_now('%Y') | length }}"
    renderer = build_renderer(str(model(template=source)), "chat_template", {"tool_call_parser": "none"})
    assert renderer.render([{"role": "user", "content": "<é&'>"}], None) == (
        "<|im_end|>" + '{"role": "user", "content": "<é&\'>"}4'
    )
    with pytest.raises(RenderError, match="one at a time"):
        renderer.render(HELLO * 2, None)


def test_a_template_cannot_leave_its_sandbox(model: Callable[..., Path]) -> None:
    source = "{{ messages.__class__.__mro__[1].__subclasses__() }}{{ messages.append(1) }}"
    renderer = build_renderer(str(model(template=source)), "chat_template", {"tool_call_parser": "none"})
    with pytest.raises(RenderError):
        renderer.render(HELLO, None)


def test_stop_tokens(model: Callable[..., Path]) -> None:
    assert toy_renderer().stop == (258, 256)
    assert ChatTemplateRenderer(model(generation_config=None)).stop == (258,)
    other = model(generation_config='{"eos_token_id": 7}')
    assert ChatTemplateRenderer(other, ChatTemplateOptions(tool_call_parser="none")).stop == (7,)
    with pytest.raises(ConfigError, match="no stop token"):
        ChatTemplateRenderer(model(generation_config="{}", tokenizer_config="{}"))


@pytest.mark.parametrize(
    ("files", "named"),
    [
        ({"tokenizer": None}, "tokenizer.json"),
        ({"template": None}, "no chat template"),
        ({"template": "{% if %}"}, "does not compile"),
        ({"generation_config": "["}, "generation_config.json is not JSON"),
        ({"generation_config": "[]"}, "not an object"),
    ],
)
def test_a_broken_model_directory_is_named(
    model: Callable[..., Path], files: dict[str, str | None], named: str
) -> None:
    with pytest.raises(ConfigError, match=named):
        ChatTemplateRenderer(model(**files))


def test_templates_may_stand_in_the_tokenizers_config(model: Callable[..., Path]) -> None:
    one = json.dumps({"eos_token": {"content": "<|im_end|>"}, "chat_template": TEMPLATE})
    assert ChatTemplateRenderer(model(template=None, tokenizer_config=one)).render(
        HELLO, None
    ) == toy_renderer().render(HELLO, None)
    named = [{"name": "default", "template": "plain"}, {"name": "tool_use", "template": TEMPLATE}]
    two = json.dumps({"eos_token": "<|im_end|>", "chat_template": named})
    renderer = ChatTemplateRenderer(model(template=None, tokenizer_config=two))
    assert renderer.render(HELLO, None) == "plain"
    assert "# Tools" in renderer.render(HELLO, [{"type": "function", "function": {"name": "f"}}])


def choice(renderer: Renderer) -> tuple[str, bool | None]:
    assert isinstance(renderer, ChatTemplateRenderer)
    return renderer.parser_choice.parser, renderer.parser_choice.verified


def test_the_parser_is_proved_against_the_template(model: Callable[..., Path]) -> None:
    assert choice(toy_renderer()) == ("hermes", True)
    assert choice(toy_renderer(tool_call_parser="qwen25")) == ("hermes", True)
    assert choice(toy_renderer(tool_call_parser="none")) == ("none", None)
    other = str(
        model(template=TEMPLATE.replace('{"name": \' + (call.function.name', '{"tool": \' + (call.function.name'))
    )
    with pytest.raises(ConfigError, match=r"hermes: read the calls \[\]"):
        build_renderer(other, "chat_template", {})
    assert choice(build_renderer(other, "chat_template", {"tool_call_parser": "hermes"})) == ("hermes", False)
    toolless = str(model(template="{{ messages[-1].content }}"))
    assert choice(build_renderer(toolless, "chat_template", {})) == ("none", None)


def test_a_template_for_one_call_a_turn_is_probed_call_by_call(model: Callable[..., Path]) -> None:
    guard = "{%- if message.tool_calls and message.tool_calls|length > 1 %}{{ raise_exception('one call') }}{% endif %}"
    source = TEMPLATE.replace("{%- for message in messages %}", "{%- for message in messages %}" + guard)
    assert choice(ChatTemplateRenderer(model(template=source))) == ("hermes", True)


def test_a_template_that_opens_the_reasoning(model: Callable[..., Path]) -> None:
    """The reply starts inside the reasoning only when this prompt opened it."""
    source = TEMPLATE.replace(
        "{%- if enable_thinking is defined and not enable_thinking %}",
        "{%- if enable_thinking %}{{- '<think>\\n' }}{%- else %}",
    )
    renderer = ChatTemplateRenderer(model(template=source))
    assert choice(renderer) == ("hermes", True)
    tokens = [*renderer.encode("hm\n</think>\n\nhi"), TOY_EOS]
    opened = renderer.parse(tokens, prompt_text=renderer.render(HELLO, None), tools=None)
    assert (opened.reasoning, opened.content) == ("hm", "hi")
    closed = renderer.parse(tokens, prompt_text=renderer.render(HELLO, None, enable_thinking=False), tools=None)
    assert (closed.reasoning, closed.content) == (None, "hm\n</think>\n\nhi")


def test_equal_samples_get_equal_ids_and_calls_get_different_ones() -> None:
    renderer = toy_renderer()
    tokens = renderer.encode('<tool_call>{"name": "f"}</tool_call><tool_call>{"name": "f"}</tool_call>')
    first, again = (renderer.parse(tokens, prompt_text="p", tools=None).tool_calls for _ in range(2))
    other = renderer.parse(tokens, prompt_text="q", tools=None).tool_calls
    assert first == again
    assert len({call["id"] for call in [*first, *other]}) == 4
    assert all(len(call["id"]) == len("call_") + 24 for call in first)


def test_success_means_that_a_stop_token_was_sampled() -> None:
    renderer = toy_renderer()
    for tokens, success in (([104, TOY_EOS, 105], True), ([104, 256], True), ([104], False), ([], False)):
        parsed = renderer.parse(tokens, prompt_text="p", tools=None)
        assert (parsed.success, parsed.content) == (success, "h" if tokens else "")


def failing_parse(
    text: str, *, tools: Sequence[Mapping[str, Any]] | None = None, in_reasoning: bool = False
) -> ParsedText:
    if "boom" in text:
        raise ZeroDivisionError("no")
    return ParsedText(content=text.upper())


def test_a_parser_that_raises_makes_one_unparsed_block() -> None:
    renderer = toy_renderer(tool_call_parser="tests.render.test_renderer:failing_parse")
    assert choice(renderer) == ("tests.render.test_renderer:failing_parse", False)
    good = renderer.parse(renderer.encode("hi"), prompt_text="p", tools=None)
    bad = renderer.parse(renderer.encode("boom"), prompt_text="p", tools=None)
    assert good.content == "HI"
    assert (bad.content, bad.tool_calls) == ("", [])
    assert bad.unparsed == [{"raw_text": "boom", "error": "ZeroDivisionError: no"}]


def test_where_models_are() -> None:
    assert model_directory("platoon/toy") == TOY_TOKENIZER_DIR
    assert model_directory(str(TOY_TOKENIZER_DIR)) == TOY_TOKENIZER_DIR
    with pytest.raises(ConfigError, match="does not exist"):
        model_directory("/no/such/model")
    with pytest.raises(ConfigError, match="neither a directory nor"):
        model_directory("no such/repository/name")


def test_all_presets_load() -> None:
    for name in PRESETS:
        assert choice(toy_renderer(name)) == ("hermes", True)
