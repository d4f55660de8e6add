from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest

import platoon as pt
from platoon.envs.contract import EnvSession, EnvSetupError
from platoon.envs.gym import Action
from platoon.envs.services import build_service
from platoon.rollout.trajectory import Task
from platoon.testing import tool_call
from platoon.testing.episodes import run_episode
from tests.envs import games

MODULE = "python://tests.envs.games:"


async def opened(name: str, task_id: str = "train:0") -> EnvSession:
    service = build_service(MODULE + name, {})
    return await service.open(await service.get_task(task_id), rollout_id="r")


async def test_its_splits_tasks_and_tool() -> None:
    service: Any = build_service(f"{MODULE}GuessEnvironment", {})
    assert await service.list_splits() == ["train", "eval"]
    assert await service.list_task_names("eval") == {"eval:0": "nine"}
    session = await opened("GuessEnvironment", "eval:0")
    (tool,) = await session.tools()
    assert (tool.name, tool.terminal) == ("act", False)
    assert tool.input_schema["required"] == ["action"]
    assert tool.input_schema["properties"] == {"action": {"type": "string"}}
    assert session.instruction == "Guess."
    assert (await session.call_tool("act", {"action": "9"})).reward == 1.0
    await session.close()


async def test_an_episode_is_graded_with_its_return() -> None:
    before = games.COUNTS.copy()
    script = [tool_call("act", action=action) for action in ("5", "x", "7")]
    run = await run_episode("seven", service=f"{MODULE}GuessEnvironment", policy=script, max_steps=5)
    assert [call["text"] for call in run.root.misc["tool_calls"]] == ["Higher.", "Write a number.", "Correct!"]
    assert (run.outcome.status, run.reward) == ("scored", 0.5)
    assert run.outcome.metadata["env_metadata"] == {"step_reward": 1.0, "return": 0.5}
    assert run.root.task is not None
    assert run.root.task.goal == "Find my number."
    assert games.COUNTS - before == {"reset": 1, "closed": 1}


async def test_each_result_carries_the_return_so_far() -> None:
    session = await opened("GuessEnvironment")
    results = [await session.call_tool("act", {"action": action}) for action in ("1", "8", "7")]
    assert [(result.reward, result.metadata["step_reward"], result.finished) for result in results] == [
        (-0.25, -0.25, False),
        (-0.5, -0.25, False),
        (0.5, 1.0, True),
    ]
    await session.close()


async def test_a_call_after_the_end_says_so_with_the_return() -> None:
    cls: Any = games.GuessEnvironment
    env = cls({"number": 3}, {})
    arguments = Action(action="3")
    first, second = await env.act(arguments), await env.act(arguments)  # without the prompt: reset on first use
    assert (first.reward, first.finished, second.reward, second.finished) == (1.0, True, 1.0, True)
    assert second.metadata == {"step_reward": 0.0, "return": 1.0}


async def test_a_copy_goes_on_by_itself_and_a_shared_fork_does_not() -> None:
    before = games.COUNTS.copy()
    session = await opened("GuessEnvironment")
    await session.call_tool("act", {"action": "1"})
    twin = await session.fork("copy")
    view = await session.fork("shared", task=Task(goal="help"))
    assert (await twin.call_tool("act", {"action": "7"})).reward == 0.75
    assert (await view.call_tool("act", {"action": "8"})).reward == -0.5
    assert (await session.call_tool("act", {"action": "7"})).reward == 0.5
    assert [(await each.grade()).reward for each in (twin, view, session)] == [0.75, 0.5, 0.5]
    for each in (twin, view, session):
        await each.close()
    assert games.COUNTS - before == {"reset": 1, "closed": 2}


@pytest.mark.parametrize("cap", [0, 2])
async def test_an_environment_that_breaks_has_no_grade_whatever_it_gave_before(cap: int) -> None:
    script = [tool_call("act", action=action) for action in ("1", "2", "3")]
    service, options = f"{MODULE}BreaksEnvironment", {"max_tool_calls": cap}
    run = await run_episode("train:0", service=service, service_kwargs=options, policy=script, max_steps=3)
    assert (run.outcome.status, run.outcome.failure_kind, run.reward) == ("invalid", "env_invalid", None)
    assert run.outcome.reason == "Breaks.step raised LookupError: the board is gone"
    assert len(run.interactions) == 2, "the episode ends there"


async def test_one_that_cannot_be_reset_does_not_open() -> None:
    with pytest.raises(EnvSetupError, match=r"Unready\.reset raised ConnectionError: no board") as caught:
        await opened("UnreadyEnvironment")
    assert caught.value.failure_kind == "env_setup"


async def test_without_tasks_there_is_one() -> None:
    service = build_service(f"{MODULE}BreaksEnvironment", {})
    assert await service.list_tasks("train") == ["train:0"]


@pytest.mark.parametrize(
    ("name", "tasks", "text"),
    [
        ("my env", None, "no name of a class"),
        ("Env", {}, "no split"),
        ("Env", {"train": ["one"]}, r"\['one'\]"),
    ],
)
def test_names_and_tasks_are_checked(name: str, tasks: Any, text: str) -> None:
    with pytest.raises(ValueError, match=text):
        pt.gym.as_environment(games.Guess, name=name, tasks=tasks)


def test_the_sdk_is_loaded_for_an_environment_only() -> None:
    code = """
import sys, platoon as pt
pt.gym.loop(object)
assert "openreward" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", code], check=True)
