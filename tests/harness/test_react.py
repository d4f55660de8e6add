from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from platoon.harness.react import read_call
from platoon.testing.episodes import run_episode
from platoon.testing.policy import Completion, ScriptedPolicy, tool_call

COUNTING = "python://tests.envs.worlds:Counting"
SUBMITS = "python://tests.envs.worlds:Submits"


def call(body: str) -> str:
    return f"<tool_call>\n{body}\n</tool_call>"


async def test_tools_are_called_until_one_ends_the_episode() -> None:
    policy = ScriptedPolicy([tool_call("add", number=2), tool_call("finish", number=1) + tool_call("add", number=9)])
    run = await run_episode("train:0", service=COUNTING, policy=policy)
    assert run.reward == 1.0
    assert [made["name"] for made in run.root.misc["tool_calls"]] == ["add", "finish"]
    assert run.root.finish_message == "done"
    assert "on platoon-env-call: 2" in policy.prompts[1]


async def test_a_plain_reply_goes_to_the_terminal_tool_which_the_model_never_sees() -> None:
    policy = ScriptedPolicy(["yes"])
    run = await run_episode("train:0", service=SUBMITS, policy=policy)
    assert run.reward == 1.0
    assert run.root.finish_message == "yes"
    assert "submit" not in policy.prompts[0]
    assert "add" in policy.prompts[0]


async def test_a_plain_reply_ends_a_rollout_that_has_no_terminal_tool() -> None:
    run = await run_episode("train:0", service=COUNTING, policy=["I give up"])
    assert (run.reward, run.outcome.reason) == (0.0, "no_submit")
    assert run.root.misc["agent_result"]["status"] == "completed"


@pytest.mark.parametrize("bad", ['{"a": 1', '{}""', '"text"', "null"])
async def test_malformed_arguments_are_answered_and_the_rollout_goes_on(bad: str) -> None:
    broken = call(f'{{"name": "add", "arguments": {bad}}}')
    policy = ScriptedPolicy([broken, tool_call("finish", number=1)])
    run = await run_episode("train:0", service=COUNTING, policy=policy)
    assert run.reward == 1.0
    assert len(run.root.steps) == 2
    answer = policy.prompts[1].split("<tool_response>")[-1]
    assert "rror" in answer, "the agent is told what was wrong"
    first = next(iter(run.interactions.values()))
    assert bad in bytes(token for token in first.tokens_A if token < 256).decode(), "the record keeps what was written"


@pytest.mark.parametrize("arguments", ['{"a": 1', '{}""', '"text"', "null", "[1]", "3"])
def test_arguments_that_are_no_json_object_are_a_problem(arguments: str) -> None:
    name, _, problem = read_call({"id": "c", "function": {"name": "add", "arguments": arguments}})
    assert name == "add"
    assert problem is not None
    assert arguments in problem


@given(st.dictionaries(st.text(), st.integers() | st.text() | st.none() | st.lists(st.booleans())))
def test_arguments_that_are_a_json_object_are_read(arguments: dict[str, Any]) -> None:
    for given_as in (json.dumps(arguments), arguments):
        assert read_call({"function": {"name": "f", "arguments": given_as}}) == ("f", arguments, None)


async def test_the_step_budget_ends_it_at_the_limit_and_it_is_graded() -> None:
    policy = ScriptedPolicy([tool_call("add", number=1)] * 3)
    run = await run_episode("train:0", service=COUNTING, policy=policy, max_steps=3)
    assert policy.remaining == 0
    assert run.root.misc["agent_result"]["status"] == "limit"
    assert run.outcome.status == "scored"
    assert run.root.error_message is not None
    assert run.root.error_message.startswith("WARNING: Exhausted budget")


async def test_options() -> None:
    policy = ScriptedPolicy(["x"])
    options = {"system_prompt": "Be brief.", "sampling": {"temperature": 0.3, "max_tokens": 7}}
    await run_episode("train:0", service=COUNTING, policy=policy, harness_options=options)
    assert "Be brief." in policy.prompts[0]
    assert policy.calls[0].sampling_params.temperature == 0.3
    assert policy.calls[0].sampling_params.max_tokens == 7


@pytest.mark.parametrize("options", [{"sytem_prompt": "x"}, {"system_prompt": 3}, {"sampling": "hot"}])
async def test_wrong_options_crash_the_harness_and_never_score(options: dict[str, Any]) -> None:
    run = await run_episode("train:0", service=COUNTING, policy=["x"], harness_options=options)
    assert (run.outcome.status, run.outcome.failure_kind, run.reward) == ("error", "harness_crash", None)
    assert "platoon-react" in str(run.outcome.reason)


async def test_a_truncated_call_is_never_executed() -> None:
    cut = Completion(tool_call("finish", number=1), stop_reason="length")
    run = await run_episode("train:0", service=COUNTING, policy=[cut])
    assert "tool_calls" not in run.root.misc
    assert run.reward == 0.0


async def test_noop_makes_no_call() -> None:
    run = await run_episode("train:0", service=COUNTING, harness="platoon-noop", policy=[])
    assert run.root.steps == []
    assert run.episode.first_call_seconds is None
    assert run.outcome.status == "scored"
