"""Tools, switches, sampling parameters and their precedence."""

from __future__ import annotations

from typing import Any

import pytest

from platoon.config import InferenceParams
from platoon.gateway import ChatRequest, OpenAgent, RequestError, SamplingOverrides, SamplingParams
from platoon.gateway.request import normal_tools, read_request
from platoon.gateway.sampling import overrides_of, resolve
from platoon.testing import ScriptedPolicy, make_gateway

HELLO = [{"role": "user", "content": "hello"}]
EMPTY = {"type": "object", "properties": {}}


def test_only_name_description_and_parameters_reach_the_model() -> None:
    tool = {
        "type": "function",
        "function": {"name": "f", "description": None, "strict": True},
        "cache_control": {"type": "ephemeral"},
    }
    assert normal_tools([tool]) == [{"type": "function", "function": {"name": "f", "parameters": EMPTY}}]
    assert normal_tools([{"name": "g", "type": "custom", "parameters": None}]) == [
        {"type": "function", "function": {"name": "g", "parameters": EMPTY}}
    ]
    assert normal_tools(None) is normal_tools([]) is None


def test_the_key_order_of_tools_is_kept() -> None:
    inner = {"parameters": {"type": "object"}, "name": "f", "description": "d"}
    (tool,) = normal_tools([{"function": inner, "type": "function"}]) or []
    assert list(tool) == ["function", "type"]
    assert list(tool["function"]) == ["parameters", "name", "description"]
    (flat,) = normal_tools([inner]) or []
    assert list(flat) == ["type", "function"]


@pytest.mark.parametrize("tools", ["f", {"name": "f"}, ["f"], [{}], [{"function": {"name": ""}}], [{"name": 3}]])
def test_bad_tools_are_refused(tools: Any) -> None:
    with pytest.raises(RequestError) as caught:
        normal_tools(tools)
    assert caught.value.param == "tools"


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("temperature", 2.1),
        ("temperature", "1"),
        ("temperature", True),
        ("temperature", float("nan")),
        ("top_p", -0.1),
        ("top_k", 1.5),
        ("max_tokens", -1),
        ("max_tokens", True),
        ("max_completion_tokens", "9"),
        ("seed", 1.0),
        ("stop", "a"),
        ("stop", [1]),
        ("stop", [""]),
        ("tool_choice", "required"),
        ("tool_choice", {"type": "function", "function": {"name": "f"}}),
        ("chat_template_kwargs", [1]),
        ("extra_body", "x"),
    ],
)
def test_bad_values_are_refused_by_name(key: str, value: Any) -> None:
    with pytest.raises(RequestError, match=key) as caught:
        read_request(ChatRequest(HELLO, sampling={key: value}))
    assert caught.value.param == key


@pytest.mark.parametrize(
    ("sampling", "switches"),
    [
        ({}, {}),
        ({"chat_template_kwargs": {"enable_thinking": 0, "other": 1}}, {"enable_thinking": False}),
        ({"extra_body": {"chat_template_kwargs": {"preserve_thinking": True}}}, {"preserve_thinking": True}),
        (
            {
                "extra_body": {"chat_template_kwargs": {"enable_thinking": True}},
                "chat_template_kwargs": {"enable_thinking": False, "preserve_thinking": None},
            },
            {"enable_thinking": False},
        ),
        ({"reasoning_effort": "none"}, {"enable_thinking": False}),
        ({"reasoning_effort": "high"}, {}),
        ({"reasoning_effort": "low", "extra_body": {"reasoning_effort": "none"}}, {}),
        ({"extra_body": {"reasoning_effort": "none"}}, {"enable_thinking": False}),
    ],
)
def test_thinking_switches(sampling: dict[str, Any], switches: dict[str, bool]) -> None:
    assert read_request(ChatRequest(HELLO, sampling=sampling)).switches == switches


def test_stop_replaces_and_max_completion_tokens_wins() -> None:
    read = read_request(ChatRequest(HELLO, sampling={"max_tokens": 1, "max_completion_tokens": 2, "stop": ["\n"]}))
    assert read.overrides == SamplingOverrides(max_tokens=2, stop=("\n",))


GATEWAY = SamplingParams(4096, 1.0, 1.0, -1, (258,), seed=9)
AGENT = SamplingOverrides(max_tokens=100, temperature=0.7)
CALL = SamplingOverrides(max_tokens=50, temperature=0.1, top_p=0.5, top_k=3, seed=4, stop=("x",))


def test_precedence_request_merges_for_every_kind() -> None:
    for kind in ("policy", "aux", "judge"):
        assert resolve(CALL, AGENT, GATEWAY, precedence="request", kind=kind) == SamplingParams(
            50, 0.1, 0.5, 3, ("x",), 4
        )
    assert resolve(SamplingOverrides(), AGENT, GATEWAY, precedence="request", kind="policy") == SamplingParams(
        100, 0.7, 1.0, -1, (258,), 9
    )


def test_precedence_config_fixes_what_a_policy_call_samples_with() -> None:
    assert resolve(CALL, AGENT, GATEWAY, precedence="config", kind="policy") == SamplingParams(
        100, 0.7, 1.0, -1, ("x",), 4
    )
    assert resolve(CALL, SamplingOverrides(), GATEWAY, precedence="config", kind="policy").max_tokens == 50
    for kind in ("aux", "judge"):
        assert resolve(CALL, AGENT, GATEWAY, precedence="config", kind=kind).temperature == 0.1


def test_a_runs_inference_parameters_are_an_agents_layer() -> None:
    params = InferenceParams(temperature=0.5, max_completion_tokens=7)
    assert overrides_of(params) == SamplingOverrides(max_tokens=7, temperature=0.5)


async def test_tools_are_shown_also_when_the_choice_is_none_and_switches_reach_the_template() -> None:
    policy = ScriptedPolicy(["x", "y"])
    gateway = make_gateway(policy)
    agent = gateway.open_agent(OpenAgent("r"))
    await gateway.chat(agent, ChatRequest(HELLO, [{"name": "f"}], {"tool_choice": "none"}))
    await gateway.chat(agent, ChatRequest(HELLO, None, {"reasoning_effort": "none"}))
    assert '{"type": "function", "function": {"name": "f", "parameters"' in policy.prompts[0]
    assert policy.prompts[1].endswith("<|im_start|>assistant\n<think>\n\n</think>\n\n")
