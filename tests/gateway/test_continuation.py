"""Whatever is said and replayed, the recorded tokens are what the sampler saw and wrote."""

from __future__ import annotations

import asyncio
from itertools import pairwise
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from platoon.gateway import ChatRequest, ChatResponse, ModelGateway, OpenAgent
from platoon.testing import ScriptedPolicy, make_gateway, tool_call

WORDS = st.sampled_from(
    [
        "a",
        " b ",
        "\n",
        "é",
        "<think>",
        "</think>",
        "<tool_call>",
        "</tool_call>",
        tool_call("f", x=1),
        "{",
        '"',
        "<|im_end|>",
    ]
)
TEXTS = st.lists(WORDS, max_size=6).map("".join)
# A turn: where the conversation goes on (how many turns back), the reply, and what the user says to it.
TURNS = st.lists(st.tuples(st.integers(0, 2), TEXTS, TEXTS), min_size=1, max_size=7)


async def play(gateway: ModelGateway, turns: list[tuple[int, str, str]]) -> tuple[list[ChatResponse], list[str]]:
    agent = gateway.open_agent(OpenAgent("r"))
    told: list[list[dict[str, Any]]] = [[{"role": "user", "content": "start"}]]
    responses, texts = [], []
    for back, _, said in turns:
        messages = told[max(0, len(told) - 1 - back)]
        response = await gateway.chat(agent, ChatRequest(messages))
        responses.append(response)
        texts.append(gateway.renderer.render(messages, None))
        told.append([*messages, response.message, {"role": "user", "content": said}])
    return responses, texts


@settings(max_examples=40, deadline=None)
@given(TURNS)
def test_records_are_what_was_sampled(turns: list[tuple[int, str, str]]) -> None:
    policy = ScriptedPolicy([reply for _, reply, _ in turns])
    gateway = make_gateway(policy)
    responses, texts = asyncio.run(play(gateway, turns))
    agents = gateway.close_rollout("r")
    calls = agents[0].interactions
    assert list(calls) == [response.call_id for response in responses]
    for response, call, text in zip(responses, policy.calls, texts, strict=True):
        assert tuple(calls.prompt(response.call_id).tolist()) == call.prompt
        assert tuple(calls[response.call_id].tokens_A.tolist()) == call.tokens
        assert calls.prompt_length(response.call_id) == response.usage.prompt_tokens
        assert call.text == text, "by text, the prompt is what the template wrote"
    broken = sum(calls[after.call_id].continues != before.call_id for before, after in pairwise(responses))
    assert agents[0].prefix_breaks == broken


@settings(max_examples=40, deadline=None)
@given(TURNS)
def test_a_linear_conversation_is_one_sequence(turns: list[tuple[int, str, str]]) -> None:
    policy = ScriptedPolicy([reply for _, reply, _ in turns])
    gateway = make_gateway(policy, continuation="conversation", renderer_kwargs={"preserve_thinking": False})
    responses, _ = asyncio.run(play(gateway, [(0, reply, said) for _, reply, said in turns]))
    (agent,) = gateway.close_rollout("r")
    assert agent.prefix_breaks == 0
    for before, after in pairwise(policy.calls):
        assert after.prompt[: len(before.prompt) + len(before.tokens)] == (*before.prompt, *before.tokens)
    assert [call.continues for call in agent.interactions.values()] == [None, *(r.call_id for r in responses[:-1])]
