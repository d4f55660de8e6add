"""Whatever way a rollout ends, it closes exactly what it opened."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from platoon.envs.teardown import Teardowns
from platoon.rollout.episode import Episode, EpisodeRequest, new_rollout_id
from platoon.rollout.episode import run_episode as play
from platoon.testing import Completion, make_gateway
from platoon.testing.episodes import Play, run_episode
from tests.envs import worlds

WORLD = "python://tests.envs.worlds:"


def counts() -> tuple[int, int]:
    return worlds.COUNTS["opened"], worlds.COUNTS["closed"]


@pytest.mark.parametrize(
    ("world", "loop", "policy", "status"),
    [
        ("Counting", "finishes", ["hi"], "scored"),
        ("Counting", "raises", ["hi"], "error"),
        ("Counting", "own_timeout", ["hi"], "timeout"),
        ("Counting", "finishes", [TimeoutError("service")], "error"),
        ("Invalid", "calls", ["hi"], "invalid"),
        ("BadSetup", "finishes", [], "error"),
        ("BadPrompt", "finishes", [], "error"),
        ("BadTeardown", "finishes", ["hi"], "scored"),
    ],
)
async def test_opened_is_closed(world: str, loop: str, policy: list[Any], status: str) -> None:
    worlds.COUNTS.clear()
    for _ in range(10):
        run = await run_episode(
            "train:0",
            service=WORLD + world,
            harness=f"tests.rollout.loops:{loop}",
            harness_options={"tool": "declare"},
            policy=list(policy),
        )
        assert run.outcome.status == status
        assert run.gateway.agents(run.episode.collection.id if run.episode.collection else "") == []
    assert counts() == (10, 10)


async def cancelled_in(world: str, loop: str, policy: list[Any]) -> None:
    """Cancel a rollout while its environment's code runs on a thread, then let that code end."""
    worlds.COUNTS.clear()
    worlds.holding()
    gateway = make_gateway(policy)
    settings = Play(service=WORLD + world, harness=f"tests.rollout.loops:{loop}", harness_options={"tool": "work"})
    request = EpisodeRequest("train:0", settings.route(), settings.config(), new_rollout_id("train:0"))
    teardowns = Teardowns()
    with teardowns.collecting():
        rollout: asyncio.Task[Episode] = asyncio.create_task(play(request, gateway))
    await asyncio.to_thread(worlds.STARTED.wait, 30)
    rollout.cancel()
    await asyncio.sleep(0)
    worlds.RELEASE.set()
    with pytest.raises(asyncio.CancelledError):
        await rollout
    assert await teardowns.wait(30) == 0
    assert counts() == (1, 1)
    assert gateway.agents(request.rollout_id) == []


async def test_cancelled_in_setup() -> None:
    await cancelled_in("SlowSetup", "finishes", [])


async def test_cancelled_in_a_tool() -> None:
    await cancelled_in("SlowTool", "calls", ["hi"])
    assert worlds.COUNTS["closed_while_working"] == 0


async def test_cancelled_in_grading() -> None:
    await cancelled_in("SlowGrade", "gives_no_answer", ["hi"])


async def test_cancelled_while_sampling_leaves_nothing_open() -> None:
    worlds.COUNTS.clear()
    sampling = asyncio.Event()

    async def stall() -> None:
        sampling.set()
        await asyncio.Event().wait()

    gateway = make_gateway([Completion("late", delay=stall)])
    settings = Play(service=WORLD + "Counting", harness="tests.rollout.loops:finishes")
    request = EpisodeRequest("train:0", settings.route(), settings.config(), new_rollout_id("train:0"))
    rollout = asyncio.create_task(play(request, gateway))
    await sampling.wait()
    rollout.cancel()
    with pytest.raises(asyncio.CancelledError):
        await rollout
    assert counts() == (1, 1)
    assert gateway.agents(request.rollout_id) == []


def test_rollout_ids_are_fresh_and_safe_in_paths() -> None:
    made = {new_rollout_id("math::a/b c:" + "x" * 100) for _ in range(50)}
    assert len(made) == 50
    assert all(len(name) <= 93 and "/" not in name and ":" not in name for name in made)
