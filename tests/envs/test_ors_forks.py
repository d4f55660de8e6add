from __future__ import annotations

from typing import Any

import pytest

from platoon.envs.contract import EnvSession
from platoon.envs.ors.service import OrsEnvironmentService
from platoon.rollout.trajectory import Task
from tests.envs import worlds


async def opened(world: type, task_id: str = "train:0") -> EnvSession:
    service = OrsEnvironmentService(world)
    return await service.open(await service.get_task(task_id), rollout_id="r")


async def test_a_shared_fork_keeps_the_environment_open_until_the_last_leaves() -> None:
    before = worlds.COUNTS["closed"]
    session = await opened(worlds.Counting)
    child = await session.fork("shared")
    await session.close()
    assert worlds.COUNTS["closed"] == before
    assert (await child.call_tool("finish", {"number": 1})).reward == 1.0
    await child.close()
    assert worlds.COUNTS["closed"] == before + 1


async def test_a_shared_fork_plays_in_the_parents_episode() -> None:
    session = await opened(worlds.Tally)
    child = await session.fork("shared", task=Task(goal="help"))
    await child.call_tool("add", {"number": 2})
    assert child.instruction == "help"
    assert (await session.call_tool("end", {})).reward == 2.0
    assert (await child.grade()).reward == 2.0


async def test_a_fork_hook_gives_the_child_its_own_goal_and_grade_on_shared_state() -> None:
    before = worlds.COUNTS["closed"]
    session = await opened(worlds.TallyWithChildren)
    child = await session.fork("shared", task=Task(goal="5"))
    await child.call_tool("add", {"number": 5})
    assert (await child.grade()).reward == 1.0
    assert (await session.grade()).reward == 0.0
    assert (await child.grade()).metadata["tool_calls"] == 1
    assert (await session.grade()).metadata["tool_calls"] == 0
    await session.close()
    assert worlds.COUNTS["closed"] == before, "the child still lives on the parent's state"
    assert (await child.call_tool("add", {"number": 1})).as_text() == "6"
    await child.close()
    assert worlds.COUNTS["closed"] == before + 1, "only the parent's environment is torn down"


async def test_a_fork_hook_that_gives_no_environment_is_refused_and_holds_nothing() -> None:
    before = worlds.COUNTS["closed"]
    session = await opened(worlds.TallyWithChildren)
    with pytest.raises(TypeError, match="platoon_fork"):
        await session.fork("shared", task=Task(goal="nothing"))
    await session.close()
    assert worlds.COUNTS["closed"] == before + 1


async def test_a_copy_goes_on_by_itself() -> None:
    session = await opened(worlds.Tally)
    await session.call_tool("add", {"number": 3})
    child = await session.fork("copy")
    await child.call_tool("add", {"number": 4})
    assert (await child.call_tool("end", {})).reward == 7.0
    assert (await session.call_tool("end", {})).reward == 3.0
    assert (await child.grade()).metadata["tool_calls"] == 3
    await child.close()
    await session.close()


async def test_a_class_with_a_teardown_must_say_how_it_is_copied() -> None:
    session = await opened(worlds.Counting)
    with pytest.raises(NotImplementedError, match="platoon_copy"):
        await session.fork("copy")
    await session.close()


async def test_a_fresh_fork_is_a_new_environment_of_the_same_task() -> None:
    before = dict(worlds.COUNTS)
    session = await opened(worlds.Counting, "test:1")
    child = await session.fork("fresh")
    other = await session.fork("fresh", task=Task(goal="another goal"))
    assert (child.instruction, other.instruction) == ("play two", "another goal")
    assert child.task.misc["ors"]["index"] == 1
    await session.close()
    assert (await child.call_tool("finish", {"number": 1})).reward == 1.0
    await child.close()
    await other.close()
    assert worlds.COUNTS["opened"] - before.get("opened", 0) == worlds.COUNTS["closed"] - before.get("closed", 0) == 3


async def test_an_unknown_mode_and_a_closed_session_are_refused() -> None:
    session = await opened(worlds.Counting)
    mode: Any = "deep"
    with pytest.raises(ValueError, match="deep"):
        await session.fork(mode)
    await session.close()
    with pytest.raises(RuntimeError, match="closed"):
        await session.fork("shared")
