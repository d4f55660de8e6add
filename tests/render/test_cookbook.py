"""tinker-cookbook's renderers behind the gateway; runs where the extra `tinker` is installed."""

from __future__ import annotations

import pytest

from platoon.config import ConfigError
from platoon.gateway import ChatRequest, OpenAgent
from platoon.render import build_renderer
from platoon.testing import TOY_EOS, make_gateway, tool_call

pytest.importorskip("tinker_cookbook", reason="needs the extra: pip install 'platoon[tinker]'")

HELLO = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "hello"}]
TOOLS = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}]


def test_a_cookbook_renderer_writes_and_reads() -> None:
    renderer = build_renderer("platoon/toy", "qwen3", {})
    text = renderer.render(HELLO, None)
    assert text.startswith("<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nhello<|im_end|>\n")
    tokens = [*renderer.encode("<think>hm</think>hi"), TOY_EOS]
    parsed = renderer.parse(tokens, prompt_text=text, tools=None)
    assert (parsed.content.strip(), (parsed.reasoning or "").strip(), parsed.success) == ("hi", "hm", True)
    assert renderer.stop == (TOY_EOS,)


def test_names_and_keywords_are_checked() -> None:
    with pytest.raises(ConfigError, match="no_such"):
        build_renderer("platoon/toy", "no_such", {})
    with pytest.raises(ConfigError, match=r"renderer_kwargs\.nonsense"):
        build_renderer("platoon/toy", "qwen3", {"nonsense": 1})


async def test_a_conversation_with_tools_continues() -> None:
    renderer = build_renderer("platoon/toy", "qwen3_instruct", {})
    gateway = make_gateway([tool_call("f", a=1), "bye"], renderer=renderer)
    agent = gateway.open_agent(OpenAgent("r"))
    first = await gateway.chat(agent, ChatRequest(HELLO, TOOLS))
    assert first.message["tool_calls"][0]["function"] == {"name": "f", "arguments": '{"a": 1}'}
    told = [*HELLO, first.message, {"role": "tool", "content": "ok", "tool_call_id": "x", "name": "f"}]
    second = await gateway.chat(agent, ChatRequest(told, TOOLS))
    assert second.message["content"] == "bye"
    assert agent.interactions[second.call_id].continues == first.call_id
