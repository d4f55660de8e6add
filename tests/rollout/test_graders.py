"""A reward function that arms an alarm works only on a process's main thread. Elsewhere its failure is an error."""

from __future__ import annotations

import asyncio
import multiprocessing
from multiprocessing.connection import Connection

import pytest

from platoon.testing.episodes import run_episode

WORLD = "python://tests.envs.worlds:"


async def play(world: str) -> tuple[str, float | None, str | None]:
    # Without the call of `check` the environment's own grader is asked.
    options = {"tool": "add" if world == "AlarmHook" else "check"}
    loop = "tests.rollout.loops:calls"
    run = await run_episode("train:0", service=WORLD + world, harness=loop, policy=["hi"], harness_options=options)
    return run.outcome.status, run.reward, run.outcome.failure_kind


@pytest.mark.parametrize("world", ["AlarmOnThread", "AlarmOnLoop", "AlarmHook"])
@pytest.mark.parametrize("loop_thread", ["main", "other"])
def test_an_alarm_in_a_grader_scores_right_or_is_an_error(world: str, loop_thread: str) -> None:
    if loop_thread == "main":
        status, reward, kind = asyncio.run(play(world))
    else:
        status, reward, kind = asyncio.run(asyncio.to_thread(asyncio.run, play(world)))
    on_main = world == "AlarmOnLoop" and loop_thread == "main"
    assert (status, reward) == (("scored", 1.0) if on_main else ("error", None))
    assert kind in (None, "env_error", "unexpected:ValueError")


def test_the_same_in_a_worker_process() -> None:
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe()
    worker = context.Process(target=_work, args=(theirs,))
    worker.start()
    assert ours.poll(60)
    assert ours.recv() == ("error", None)
    worker.join(60)


def _work(pipe: Connection) -> None:
    pipe.send(asyncio.run(play("AlarmOnThread"))[:2])
