"""The path of a call: render, sample, parse, record."""

from __future__ import annotations

import asyncio
from itertools import pairwise

import numpy as np
import pytest

from platoon.gateway import (
    AgentClosedError,
    AgentLimitError,
    CallKindRefusedError,
    ChatRequest,
    ContextWindowExceededError,
    GatewayError,
    GatewayShutDownError,
    JudgesOffError,
    ModelGateway,
    OpenAgent,
    Sampled,
    SamplingOverrides,
    SamplingParams,
    UnknownAgentError,
)
from platoon.testing import TOY_EOS, Completion, ScriptedPolicy, make_gateway, tool_call, toy_tokenizer

HELLO = [{"role": "user", "content": "hello"}]
TOOLS = [{"type": "function", "function": {"name": "f", "description": "d", "parameters": {"type": "object"}}}]


async def test_a_call_is_recorded_with_its_exact_tokens() -> None:
    policy = ScriptedPolicy([Completion("hi there", routing_id=7, logprob=-0.5)])
    gateway = make_gateway(policy, version=3)
    agent = gateway.open_agent(OpenAgent("r"))
    response = await gateway.chat(agent, ChatRequest(HELLO))
    assert response.message == {"role": "assistant", "content": "hi there"}
    assert response.finish_reason == "stop"
    assert response.call_id.startswith("tinker-sampling-")
    call = gateway.interactions("r")[response.call_id]
    assert call.tokens_A.tolist() == [*b"hi there", TOY_EOS]
    assert call.tokens_A.dtype == np.int32
    assert call.logprobs_A.tolist() == [-0.5] * 9
    assert (call.version, call.routing_id, call.continues) == (3, 7, None)
    prompt = gateway.interactions("r").prompt(response.call_id)
    assert toy_tokenizer().decode(prompt.tolist()) == "<|im_start|>user\nhello<|im_end|>\n<|im_start|>assistant\n"
    assert response.usage.record() == {
        "prompt_tokens": len(prompt),
        "completion_tokens": 9,
        "total_tokens": len(prompt) + 9,
    }
    assert tuple(prompt.tolist()) == policy.calls[0].prompt


async def test_a_conversation_continues_from_recorded_tokens() -> None:
    gateway = make_gateway([tool_call("f", n=1), "<think>\nhm\n</think>\n\nsecond", "third"])
    agent = gateway.open_agent(OpenAgent("r"))
    messages = list(HELLO)
    ids: list[str] = []
    for answer in ("one", "two", "three"):
        response = await gateway.chat(agent, ChatRequest(messages, TOOLS))
        ids.append(response.call_id)
        messages += [response.message, {"role": "user", "content": answer}]
    calls = gateway.interactions("r")
    assert [calls[i].continues for i in ids] == [None, ids[0], ids[1]]
    assert agent.prefix_breaks == 0
    for before, after in pairwise(ids):
        told = [*calls.prompt(before).tolist(), *calls[before].tokens_A.tolist()]
        assert calls.prompt(after).tolist()[: len(told)] == told
    assert toy_tokenizer().decode(calls.prompt(ids[2]).tolist()) == gateway.renderer.render(messages[:5], TOOLS)


async def test_tokens_that_are_no_text_stay_what_they_were() -> None:
    """A reply cut inside a character shows as U+FFFD; its ids still continue."""
    broken = [0xE2, 0x82]

    class Cut:
        async def sample(self, prompt: object, params: SamplingParams) -> Sampled:
            return Sampled(broken, [-1.0, -1.0], "length")

    gateway = make_gateway(Cut())
    agent = gateway.open_agent(OpenAgent("r"))
    first = await gateway.chat(agent, ChatRequest(HELLO))
    assert first.message["content"] == "\ufffd"
    second = await gateway.chat(agent, ChatRequest([*HELLO, first.message, {"role": "user", "content": "go on"}]))
    assert gateway.interactions("r")[second.call_id].continues == first.call_id
    assert bytes(broken) in bytes(t for t in gateway.interactions("r").prompt(second.call_id) if t < 256)


@pytest.mark.parametrize(("continuation", "breaks"), [("text", 5), ("conversation", 0)])
async def test_a_template_that_drops_old_reasoning(continuation: str, breaks: int) -> None:
    """By text the prefix breaks every turn; by conversation all turns are one sequence of recorded tokens."""
    script = [f"<think>\nthought {i}\n</think>\n\nreply {i}\n" for i in range(6)]
    gateway = make_gateway(script, renderer_kwargs={"preserve_thinking": False}, continuation=continuation)
    agent = gateway.open_agent(OpenAgent("r"))
    messages = list(HELLO)
    for i in range(6):
        response = await gateway.chat(agent, ChatRequest(messages))
        messages += [{"role": "assistant", "content": response.message["content"]}]
        messages += [{"role": "user", "content": f"turn {i}"}]
    calls = gateway.interactions("r")
    assert agent.prefix_breaks == breaks
    assert sum(call.continues is None for call in calls.values()) == breaks + 1
    if continuation == "conversation":
        told = toy_tokenizer().decode(calls.prompt(response.call_id).tolist())
        turns = "".join(
            f"{script[i]}<|im_end|>\n<|im_start|>user\nturn {i}<|im_end|>\n<|im_start|>assistant\n" for i in range(5)
        )
        assert told == f"<|im_start|>user\nhello<|im_end|>\n<|im_start|>assistant\n{turns}"


async def test_a_conversation_that_was_changed_is_not_continued() -> None:
    gateway = make_gateway(lambda prompt: "<think>\nhm\n</think>\n\nyes ", continuation="conversation")
    agent = gateway.open_agent(OpenAgent("r"))
    first = await gateway.chat(agent, ChatRequest(HELLO))
    reply = {"role": "assistant", "content": first.message["content"]}
    after = {"role": "user", "content": "and?"}
    for messages, tools in (
        ([*HELLO, {**reply, "content": "no"}, after], None),
        ([{"role": "user", "content": "hi"}, reply, after], None),
        ([*HELLO, reply, after], TOOLS),
    ):
        other = await gateway.chat(agent, ChatRequest(messages, tools))
        assert agent.interactions[other.call_id].continues is None
    same = await gateway.chat(agent, ChatRequest([*HELLO, reply, after]))
    assert agent.interactions[same.call_id].continues == first.call_id


async def test_tool_calls_are_emitted_with_json_arguments() -> None:
    gateway = make_gateway([f"Sure.\n{tool_call('f', text='ü', n=2)}"])
    agent = gateway.open_agent(OpenAgent("r"))
    response = await gateway.chat(agent, ChatRequest(HELLO, TOOLS))
    assert response.finish_reason == "tool_calls"
    assert response.message["content"] == "Sure."
    assert response.message["tool_calls"][0]["function"] == {"name": "f", "arguments": '{"text": "ü", "n": 2}'}
    assert response.diagnostics is not None
    assert response.diagnostics.record() == {
        "stop_reason": "stop",
        "generated_tokens": response.usage.completion_tokens,
        "parse_success": True,
        "parsed_tool_calls": 1,
        "emitted_tool_calls": 1,
        "recovered_tool_calls": 0,
        "unparsed_tool_calls": 0,
    }


async def test_a_truncated_reply_emits_no_tool_call() -> None:
    gateway = make_gateway([Completion(tool_call("f", n=2), stop_reason="length")])
    agent = gateway.open_agent(OpenAgent("r"))
    response = await gateway.chat(agent, ChatRequest(HELLO, TOOLS))
    assert response.finish_reason == "length"
    assert "tool_calls" not in response.message
    assert response.diagnostics is not None
    assert (response.diagnostics.parsed_tool_calls, response.diagnostics.emitted_tool_calls) == (1, 0)


@pytest.mark.parametrize("arguments", ['{"a": 1', '{}""', '"text"', "[1]", "{'a': 1}", '{"a": NaN}', '{"a": 1e999}'])
async def test_bad_arguments_stay_in_the_conversation_as_sampled(arguments: str) -> None:
    raw = f'<tool_call>\n{{"name": "f", "arguments": {arguments}}}\n</tool_call>'
    gateway = make_gateway([raw, "fine"])
    agent = gateway.open_agent(OpenAgent("r"))
    response = await gateway.chat(agent, ChatRequest(HELLO, TOOLS))
    assert response.finish_reason == "stop"
    assert response.message == {"role": "assistant", "content": raw}
    assert response.diagnostics is not None
    assert response.diagnostics.unparsed_tool_calls == 1
    again = await gateway.chat(
        agent, ChatRequest([*HELLO, response.message, {"role": "user", "content": "that was no call"}], TOOLS)
    )
    assert gateway.interactions("r")[again.call_id].continues == response.call_id


@pytest.mark.parametrize("arguments", ["null", "{}"])
async def test_null_arguments_are_no_arguments(arguments: str) -> None:
    gateway = make_gateway([f'<tool_call>\n{{"name": "f", "arguments": {arguments}}}\n</tool_call>'])
    agent = gateway.open_agent(OpenAgent("r"))
    response = await gateway.chat(agent, ChatRequest(HELLO, TOOLS))
    assert response.message["tool_calls"][0]["function"]["arguments"] == "{}"


async def test_one_bad_and_one_good_block() -> None:
    bad = '<tool_call>\n{"name": "f", "arguments": {"a": }}\n</tool_call>'
    gateway = make_gateway([f"I try.\n{bad}\n{tool_call('f', a=1)}"])
    agent = gateway.open_agent(OpenAgent("r"))
    response = await gateway.chat(agent, ChatRequest(HELLO, TOOLS))
    assert len(response.message["tool_calls"]) == 1
    assert response.message["content"] == f"I try.\n\n{bad}"
    assert response.diagnostics is not None
    assert response.diagnostics.unparsed_tool_calls == 1


async def test_a_full_window_is_refused_and_a_budget_is_clamped() -> None:
    policy = ScriptedPolicy(["x", "y"])
    probe = make_gateway(["x"])
    length = (await probe.chat(probe.open_agent(OpenAgent("r")), ChatRequest(HELLO))).usage.prompt_tokens
    gateway = make_gateway(policy, context_window_length=length)
    agent = gateway.open_agent(OpenAgent("r"))
    with pytest.raises(ContextWindowExceededError) as caught:
        await gateway.chat(agent, ChatRequest(HELLO))
    assert (caught.value.prompt_tokens, caught.value.context_window) == (length, length)
    assert (agent.context_overflows, agent.gateway_errors, agent.calls, policy.calls) == (1, 0, [], [])
    gateway = make_gateway(policy, context_window_length=length + 10)
    await gateway.chat(gateway.open_agent(OpenAgent("r")), ChatRequest(HELLO, sampling={"max_tokens": 4096}))
    assert policy.calls[0].sampling_params.max_tokens == 10


async def test_the_deadline_is_a_timeout_and_leaves_nothing() -> None:
    gateway = make_gateway([Completion("late", delay=asyncio.Event().wait)], sample_timeout_seconds=0.01)
    agent = gateway.open_agent(OpenAgent("r"))
    with pytest.raises(TimeoutError, match=r"longer than 0\.01 s"):
        await gateway.chat(agent, ChatRequest(HELLO))
    assert (agent.gateway_errors, agent.calls, agent.policy_calls_in_flight) == (1, [], 0)
    assert len(gateway.interactions("r")) == 0


@pytest.mark.parametrize("bad", [0, -1, float("inf"), float("nan"), True])
def test_bad_deadlines_are_refused(bad: float) -> None:
    with pytest.raises(ValueError, match="sample_timeout_seconds"):
        make_gateway([], sample_timeout_seconds=bad)


async def test_a_sampler_failure_is_the_gateways_and_is_counted() -> None:
    gateway = make_gateway([RuntimeError("service down"), ValueError("bad shape")])
    agent = gateway.open_agent(OpenAgent("r"))
    with pytest.raises(RuntimeError, match="service down"):
        await gateway.chat(agent, ChatRequest(HELLO))
    with pytest.raises(GatewayError, match="bad shape"):
        await gateway.chat(agent, ChatRequest(HELLO))
    with pytest.raises(ValueError, match="messages is empty"):
        await gateway.chat(agent, ChatRequest([]))
    assert (agent.gateway_errors, agent.calls) == (2, [])


async def test_a_sampler_may_answer_with_arrays() -> None:
    class Arrays:
        async def sample(self, prompt: object, params: SamplingParams) -> Sampled:
            tokens = np.array([104, 105, TOY_EOS], np.int64)
            return Sampled(tokens, np.array([-0.5] * 3, np.float32), "stop")  # type: ignore[arg-type]

    gateway = make_gateway(Arrays())
    response = await gateway.chat(gateway.open_agent(OpenAgent("r")), ChatRequest(HELLO))
    assert (response.message["content"], response.tokens) == ("hi", [104, 105, TOY_EOS])


@pytest.mark.parametrize(
    "sampled", [Sampled([1], [], "stop"), Sampled([1], [float("nan")], "stop"), Sampled([1], [float("-inf")], "stop")]
)
async def test_a_bad_sample_is_an_error_and_no_number(sampled: Sampled) -> None:
    class Broken:
        async def sample(self, prompt: object, params: SamplingParams) -> Sampled:
            return sampled

    gateway = make_gateway(Broken())
    agent = gateway.open_agent(OpenAgent("r"))
    with pytest.raises(GatewayError):
        await gateway.chat(agent, ChatRequest(HELLO))
    assert (agent.gateway_errors, agent.calls) == (1, [])


async def test_a_cancelled_call_records_nothing() -> None:
    entered = asyncio.Event()

    async def wait() -> None:
        entered.set()
        await asyncio.Event().wait()

    gateway = make_gateway([Completion("never", delay=wait)])
    agent = gateway.open_agent(OpenAgent("r"))
    task = asyncio.create_task(gateway.chat(agent, ChatRequest(HELLO)))
    await entered.wait()
    assert agent.call_tally.in_flight == 1
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert (agent.call_tally.in_flight, agent.calls, agent.gateway_errors) == (0, [], 0)


@pytest.mark.parametrize("end", ["agent", "gateway"])
async def test_an_agent_closed_while_it_samples_records_nothing(end: str) -> None:
    entered, release = asyncio.Event(), asyncio.Event()

    async def wait() -> None:
        entered.set()
        await release.wait()

    gateway = make_gateway([Completion("x", delay=wait)])
    agent = gateway.open_agent(OpenAgent("r"))
    task = asyncio.create_task(gateway.chat(agent, ChatRequest(HELLO)))
    await entered.wait()
    if end == "agent":
        gateway.close_agent(agent)
    else:
        gateway.shut_down()
    release.set()
    with pytest.raises(AgentClosedError if end == "agent" else GatewayShutDownError):
        await task
    assert (agent.calls, len(agent.interactions)) == ([], 0)


async def test_closing() -> None:
    gateway = make_gateway(["x"])
    root = gateway.open_agent(OpenAgent("r"))
    child = gateway.open_agent(OpenAgent("r", parent=root))
    other = gateway.open_agent(OpenAgent("other"))
    await gateway.chat(root, ChatRequest(HELLO))
    gateway.close_agent(child)
    gateway.close_agent(child)
    assert gateway.close_rollout("r") == [root, child]
    assert gateway.close_rollout("r") == []
    assert len(gateway.interactions("r")) == 1, "readable while an agent is referenced"
    again = gateway.open_agent(OpenAgent("r"))
    assert len(again.interactions) == 0, "a rollout id used again starts anew"
    gateway.close_rollout("r")
    with pytest.raises(AgentClosedError):
        gateway.agent_of(root.secret)
    with pytest.raises(UnknownAgentError):
        gateway.agent_of("nonsense")
    with pytest.raises(UnknownAgentError):
        gateway.agent_of(None)
    with pytest.raises(UnknownAgentError):
        gateway.open_agent(OpenAgent("r", parent=root))
    assert gateway.agent_of(other.secret) is other
    gateway.shut_down()
    with pytest.raises(AgentClosedError):
        gateway.agent_of(other.secret)
    with pytest.raises(GatewayShutDownError):
        gateway.open_agent(OpenAgent("new"))


def test_a_parent_of_another_rollout_is_refused() -> None:
    gateway = make_gateway([])
    root = gateway.open_agent(OpenAgent("a"))
    with pytest.raises(ValueError, match="belongs to rollout a"):
        gateway.open_agent(OpenAgent("b", parent=root))


async def test_children_inherit_and_fork_where_the_parent_stood() -> None:
    gateway = make_gateway(["a", "b"])
    root = gateway.open_agent(
        OpenAgent("r", sampling=SamplingOverrides(temperature=0.5), sampling_precedence="config", seed_scope="s")
    )
    await gateway.chat(root, ChatRequest(HELLO))
    await gateway.chat(root, ChatRequest(HELLO), "judge")
    child = gateway.open_agent(OpenAgent("r", parent=root, goal="g"))
    assert (child.role, child.depth, child.fork_step, child.path) == ("subagent", 1, 2, (0,))
    assert child.sampling_defaults == root.sampling_defaults
    assert (child.sampling_precedence, child.seed_scope) == ("config", "s")
    assert child.interactions is root.interactions
    assert gateway.open_agent(OpenAgent("r", parent=child, role="verifier")).path == (0, 0)
    assert gateway.open_agent(OpenAgent("r", parent=root)).path == (1,)


async def test_judge_calls_are_kept_but_have_no_tokens() -> None:
    gateway = make_gateway(["a", "b", "c"])
    agent = gateway.open_agent(OpenAgent("r"))
    for kind in ("policy", "aux", "judge"):
        await gateway.chat(agent, ChatRequest(HELLO), kind)
    assert agent.call_kinds == ["policy", "aux", "judge"]
    assert (agent.policy_calls, agent.call_tally.recorded) == (1, 1)
    assert list(gateway.interactions("r")) == [call.call_id for call in agent.calls[:2]]


async def test_judges_off() -> None:
    gateway = make_gateway([])
    agent = gateway.open_agent(OpenAgent("r", judges=False))
    with pytest.raises(JudgesOffError):
        await gateway.chat(agent, ChatRequest(HELLO), "judge")
    with pytest.raises(JudgesOffError):
        gateway.open_agent(OpenAgent("r", parent=agent, role="judge"))
    assert agent.judges_refused == 2


@pytest.mark.parametrize(
    ("cap", "kind", "allowed"),
    [(None, "aux", True), (None, "judge", False), (3, "aux", False), (3, "judge", False), (3, "policy", True)],
)
async def test_call_kinds_of_an_agent_whose_key_the_policy_can_read(cap: int | None, kind: str, allowed: bool) -> None:
    gateway = make_gateway(["x"])
    agent = gateway.open_agent(OpenAgent("r", policy_only=True, call_cap=cap))
    if allowed:
        await gateway.chat(agent, ChatRequest(HELLO), kind)  # type: ignore[arg-type]
    else:
        with pytest.raises(CallKindRefusedError):
            await gateway.chat(agent, ChatRequest(HELLO), kind)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="call kind 'other'"):
        await gateway.chat(agent, ChatRequest(HELLO), "other")  # type: ignore[arg-type]


async def test_an_aux_call_that_the_policy_can_make_samples_as_the_policy_does() -> None:
    policy = ScriptedPolicy(["x", "y"])
    gateway = make_gateway(policy)
    request = ChatRequest(HELLO, sampling={"temperature": 0.1})
    defaults = SamplingOverrides(temperature=1.0)
    for policy_only in (True, False):
        agent = gateway.open_agent(
            OpenAgent("r", policy_only=policy_only, sampling=defaults, sampling_precedence="config")
        )
        await gateway.chat(agent, request, "aux")
    assert [call.sampling_params.temperature for call in policy.calls] == [1.0, 0.1]


async def test_the_version_is_the_one_of_the_sampler_that_sampled() -> None:
    entered, release = asyncio.Event(), asyncio.Event()

    async def wait() -> None:
        entered.set()
        await release.wait()

    gateway = make_gateway([Completion("old", delay=wait)], version=1)
    agent = gateway.open_agent(OpenAgent("r"))
    task = asyncio.create_task(gateway.chat(agent, ChatRequest(HELLO)))
    await entered.wait()
    gateway.set_policy(ScriptedPolicy(["new"]), 2)
    release.set()
    first = await task
    second = await gateway.chat(agent, ChatRequest(HELLO))
    calls = gateway.interactions("r")
    assert (calls[first.call_id].version, calls[second.call_id].version) == (1, 2)
    assert [call.version for call in agent.calls] == [1, 2]


async def _seeds(gateway: ModelGateway, policy: ScriptedPolicy, scope: str | None) -> list[int | None]:
    start = len(policy.calls)
    root = gateway.open_agent(OpenAgent(f"r{start}", seed_scope=scope))
    child = gateway.open_agent(OpenAgent(f"r{start}", parent=root))
    for agent in (root, child, root):
        await gateway.chat(agent, ChatRequest(HELLO))
    await gateway.chat(root, ChatRequest(HELLO, sampling={"seed": 5}))
    return [call.sampling_params.seed for call in policy.calls[start:]]


async def test_seeds_derive_from_scope_place_and_index() -> None:
    policy = ScriptedPolicy(lambda prompt: "x")
    gateway = make_gateway(policy, sampling_seed=1)
    first, again = await _seeds(gateway, policy, "p0/m0"), await _seeds(gateway, policy, "p0/m0")
    other = await _seeds(gateway, policy, "p0/m1")
    assert first == again
    assert len({*first, *other}) == 7
    assert first[3] == other[3] == 5
    assert all(seed is not None and 0 <= seed < 2**31 for seed in first)
    assert await _seeds(gateway, policy, None) == [None, None, None, 5]
    assert await _seeds(make_gateway(policy), policy, "p0/m0") == [None, None, None, 5]


def test_minting_is_limited_and_shares_the_tally() -> None:
    gateway = make_gateway([], max_minted_agents=2)
    root = gateway.open_agent(OpenAgent("r", call_cap=4, policy_only=True))
    child = gateway.mint_subagent(root, "helper", "g")
    grandchild = gateway.mint_subagent(child, "helper")
    assert grandchild.call_tally is root.call_tally
    assert (grandchild.call_cap, grandchild.policy_only, grandchild.depth) == (4, True, 2)
    with pytest.raises(AgentLimitError):
        gateway.mint_subagent(root, "helper")


async def test_the_first_call_is_reported_once_and_timings_are_kept() -> None:
    from platoon.gateway import RolloutTimeline

    heard: list[float] = []
    timeline = RolloutTimeline(heard.append)
    gateway = make_gateway(["a", "b"])
    agent = gateway.open_agent(OpenAgent("r", timeline=timeline))
    assert timeline.first_model_call_seconds == -1.0
    await gateway.chat(agent, ChatRequest(HELLO))
    await gateway.chat(agent, ChatRequest(HELLO))
    assert len(heard) == 1
    assert timeline.first_model_call_seconds == heard[0] >= 0
    assert len(timeline.calls) == 2
    assert timeline.summary(1)["gap_seconds"] == [timeline.calls[0][0]]
