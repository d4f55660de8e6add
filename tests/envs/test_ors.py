from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest

from platoon.envs.contract import EnvSession, EnvSetupError
from platoon.envs.gate import on_behalf_of
from platoon.envs.ors.service import OrsEnvironmentService
from platoon.envs.services import build_service
from tests.envs import worlds


def service(name: str, **options: Any) -> OrsEnvironmentService:
    made = build_service(f"python://tests.envs.worlds:{name}", options)
    assert isinstance(made, OrsEnvironmentService)
    return made


async def opened(name: str, task_id: str = "train:0", **options: Any) -> EnvSession:
    made = service(name, **options)
    return await made.open(await made.get_task(task_id), rollout_id="r")


async def test_tasks_are_listed_by_index_and_found_by_name() -> None:
    made = service("Counting")
    assert await made.list_tasks("train") == ["train:0", "train:1", "train:2"]
    assert (await made.get_task("train-two")).misc["ors"] == {"split": "train", "index": 1, "name": "train-two"}
    assert await made.list_task_names("test") == {"test:0": "test-one", "test:1": "test-two", "test:2": "test-three"}


async def test_a_subclass_lists_its_own_tasks_after_its_parent_did() -> None:
    assert len(await service("Counting").list_tasks("train")) == 3
    assert len(await service("Submits").list_tasks("train")) == 1
    assert len(await service("Counting").list_tasks("train")) == 3


async def test_listing_is_narrowed_by_names_or_indices() -> None:
    assert await service("Counting", task_indices=[2, 0]).list_tasks("train") == ["train:2", "train:0"]
    assert await service("Counting", task_names=["train-two"]).list_tasks("train") == ["train:1"]
    with pytest.raises(ValueError, match=r"task_indices \[9\]"):
        await service("Counting", task_indices=[9]).list_tasks("train")


@pytest.mark.parametrize("task_id", ["train:3", "nowhere:0", "no-such-name"])
async def test_an_unknown_task_is_refused(task_id: str) -> None:
    with pytest.raises(ValueError, match=r"no task|no split"):
        await service("Counting").get_task(task_id)


async def test_the_prompt_is_the_instruction_and_a_filter_may_rewrite_it() -> None:
    session = await opened("Counting", "test:1", prompt_filter=str.upper)
    assert session.instruction == "PLAY TWO"
    assert session.task.goal == "PLAY TWO"
    await session.close()
    session = await opened("SetupAndPromptAreAsync")
    assert session.instruction == "async prompt"
    await session.close()


async def test_plain_tools_run_on_threads_of_their_own_and_coroutines_on_the_loop() -> None:
    session = await opened("Counting")
    result = await session.call_tool("add", {"number": 4})
    assert result.as_text() == "on platoon-env-call: 4"
    assert (await session.call_tool("finish", {"number": 1})).finished
    await session.close()


async def test_a_plain_tool_costs_less_than_a_millisecond_a_call() -> None:
    session = await opened("Counting")
    await session.call_tool("add", {"number": 0})
    seconds = []
    for number in range(200):
        started = time.process_time()
        await session.call_tool("add", {"number": number})
        seconds.append(time.process_time() - started)
    await session.close()
    assert sorted(seconds)[100] < 1e-3


async def test_schemas_lose_their_titles_and_terminal_tools_are_told_apart() -> None:
    session = await opened("Submits")
    tools = {spec.name: spec for spec in await session.tools()}
    assert tools["submit"].terminal
    assert not tools["add"].terminal
    expected = {"properties": {"number": {"type": "integer"}}, "required": ["number"], "type": "object"}
    assert tools["add"].input_schema == expected
    assert list(tools["submit"].input_schema["properties"]) == ["text"]
    assert tools["submit"].meta == {"openreward.dev/terminal-tool": {"arg": "text"}}
    await session.close()


async def test_options_name_terminal_and_read_only_tools() -> None:
    session = await opened("Counting", terminal_tools="finish", read_only_tools=["add"])
    tools = {spec.name: spec for spec in await session.tools()}
    assert tools["finish"].terminal
    assert tools["add"].read_only
    await session.close()


async def test_a_tool_that_once_ended_an_episode_is_learned_as_terminal() -> None:
    session = await opened("Counting")
    assert not any(spec.terminal for spec in await session.tools())
    await session.call_tool("finish", {"number": 1})
    assert [spec.name for spec in await session.tools() if spec.terminal] == ["finish"]
    await session.close()


async def test_after_the_end_no_call_runs_and_the_first_grade_stands() -> None:
    session = await opened("Counting")
    await session.call_tool("finish", {"number": 1})
    late = await session.call_tool("finish", {"number": 5})
    assert late.is_error
    assert late.finished
    assert late.metadata["error_reason"] == "environment_already_finished"
    assert (await session.grade()).reward == 1.0
    await session.close()


async def test_wrong_arguments_and_unknown_tools_are_answered_and_blame_nobody_else() -> None:
    session = await opened("Submits")
    reasons = []
    for name, arguments in (("add", {"number": "x"}), ("nothing", {}), ("submit", {"wrong": 1})):
        result = await session.call_tool(name, arguments)
        assert result.is_error
        reasons.append(result.metadata["error_reason"])
    assert reasons == ["input_validation", "not_found", "input_validation"]
    outcome = await session.grade()
    assert (outcome.reward, outcome.reason) == (0.0, "no_submit")
    await session.close()


async def test_arguments_that_are_no_object_never_reach_the_environment() -> None:
    session = await opened("Counting")
    result = await session.call_tool("add", ["number"])  # type: ignore[arg-type]
    assert result.is_error
    assert (await session.grade()).metadata["tool_calls"] == 0
    await session.close()


async def test_the_call_cap_ends_the_episode_with_the_last_reward_or_zero() -> None:
    session = await opened("Counting", max_tool_calls=1)
    await session.call_tool("add", {"number": 1})
    assert (await session.call_tool("add", {"number": 2})).metadata["error_reason"] == "max_tool_calls_exceeded"
    outcome = await session.grade()
    assert (outcome.reward, outcome.reason) == (0.0, "max_tool_calls")
    await session.close()


@pytest.mark.parametrize(("tool", "kind"), [("declare", "env_invalid"), ("forget", "no_reward")])
async def test_an_end_without_a_valid_reward_is_invalid(tool: str, kind: str) -> None:
    session = await opened("Invalid")
    await session.call_tool(tool, {})
    outcome = await session.grade()
    assert (outcome.status, outcome.failure_kind, outcome.reward) == ("invalid", kind, None)
    await session.close()


async def test_a_raising_tool_is_the_policys_problem_unless_it_may_end_the_episode() -> None:
    session = await opened("Raising")
    assert (await session.call_tool("boom", {})).metadata["error_reason"] == "tool_raised"
    assert (await session.call_tool("leave", {})).is_error
    assert (await session.grade()).reason == "no_submit"
    assert (await session.call_tool("end", {})).is_error
    outcome = await session.grade()
    assert (outcome.status, outcome.failure_kind) == ("error", "env_error")
    await session.close()


async def test_the_environments_own_grader_is_asked_when_nothing_was_submitted() -> None:
    session = await opened("Hook")
    outcome = await session.grade()
    assert outcome.reward == 0.75
    assert outcome.metadata["graded_by"] == "platoon_grade"
    await session.call_tool("finish", {"number": 0})
    assert (await session.grade()).reward == 0.0
    await session.close()


async def test_a_closed_session_grades_as_an_error_and_closes_twice() -> None:
    before = worlds.COUNTS["closed"]
    session = await opened("Counting")
    await session.close()
    await session.close()
    assert worlds.COUNTS["closed"] == before + 1
    assert (await session.grade()).failure_kind == "session_closed"
    assert (await session.call_tool("add", {"number": 1})).is_error


@pytest.mark.parametrize("name", ["BadSetup", "BadPrompt"])
async def test_a_session_that_cannot_open_closes_what_it_opened(name: str) -> None:
    before = dict(worlds.COUNTS)
    with pytest.raises(EnvSetupError) as error:
        await opened(name)
    assert error.value.failure_kind == "env_setup"
    assert worlds.COUNTS["opened"] - before.get("opened", 0) == worlds.COUNTS["closed"] - before.get("closed", 0) == 1


async def test_a_class_that_is_no_environment_is_a_configuration_error() -> None:
    with pytest.raises(EnvSetupError, match="Environment") as error:
        await service("Number").list_tasks("train")
    assert error.value.failure_kind == "env_config"


async def test_a_busy_environment_refuses_the_call_and_never_runs_it() -> None:
    worlds.holding()
    session = await opened("SlowTool", queue_timeout_s=0.02)
    await session.tools()
    with on_behalf_of("a"):
        working = asyncio.create_task(session.call_tool("work", {}))
    await asyncio.to_thread(worlds.STARTED.wait, 30)
    with on_behalf_of("b"):
        busy = await session.call_tool("add", {"number": 1})
    assert busy.metadata["error_reason"] == "env_busy"
    assert (await session.grade()).failure_kind == "env_busy"
    worlds.RELEASE.set()
    await working
    assert (await session.grade()).metadata["tool_calls"] == 1
    await session.close()


async def test_teardown_waits_for_a_call_that_still_runs() -> None:
    worlds.holding()
    worlds.COUNTS.clear()
    session = await opened("SlowTool", close_timeout_s=0.01)
    working = asyncio.create_task(session.call_tool("work", {}))
    await asyncio.to_thread(worlds.STARTED.wait, 30)
    working.cancel()
    closing = asyncio.create_task(session.close())
    await asyncio.wait({closing}, timeout=0.05)
    assert not closing.done()
    worlds.RELEASE.set()
    await closing
    assert worlds.COUNTS["closed"] == 1
    assert worlds.COUNTS["closed_while_working"] == 0


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"max_tool_calls": -1}, "max_tool_calls"),
        ({"queue_timeout_s": 0}, "queue_timeout_s"),
        ({"close_timeout_s": None}, "close_timeout_s"),
        ({"task_names": ["a"], "task_indices": [0]}, "together"),
        ({"urls": ["http://x"]}, "remote"),
        ({"bridge_tools": True}, "bridge_tools"),
    ],
)
def test_bad_options_are_named(options: dict[str, Any], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        OrsEnvironmentService(worlds.Counting, **options)
