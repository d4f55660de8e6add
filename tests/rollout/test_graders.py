"""A reward function that arms an alarm works only on a process's main thread. Elsewhere its failure is an error."""

from __future__ import annotations

import asyncio
import subprocess
import sys

import pytest

from platoon.testing.episodes import run_episode

WORLD = "python://tests.envs.worlds:"


@pytest.mark.parametrize("world", ["AlarmOnThread", "AlarmOnLoop", "AlarmHook"])
@pytest.mark.parametrize("loop_thread", ["main", "other"])
def test_an_alarm_in_a_grader_scores_right_or_is_an_error(world: str, loop_thread: str) -> None:
    async def play() -> tuple[str, float | None, str | None]:
        # Without the call the environment's own grader is asked; with it, the tool `check` grades.
        options = {"tool": "add" if world == "AlarmHook" else "check"}
        run = await run_episode(
            "train:0",
            service=WORLD + world,
            harness="tests.rollout.loops:calls",
            policy=["hi"],
            harness_options=options,
        )
        return run.outcome.status, run.reward, run.outcome.failure_kind

    if loop_thread == "main":
        status, reward, kind = asyncio.run(play())
    else:
        status, reward, kind = asyncio.run(asyncio.to_thread(asyncio.run, play()))
    on_main = world == "AlarmOnLoop" and loop_thread == "main"
    assert (status, reward) == (("scored", 1.0) if on_main else ("error", None))
    assert kind in (None, "env_error", "unexpected:ValueError")


def test_the_same_in_a_process_of_its_own() -> None:
    code = """
import asyncio
from platoon.testing.episodes import run_episode
run = asyncio.run(run_episode("train:0", service="python://tests.envs.worlds:AlarmOnThread",
                              harness="tests.rollout.loops:calls", policy=["hi"]))
assert (run.outcome.status, run.reward) == ("error", None), run.outcome
"""
    subprocess.run([sys.executable, "-c", code], check=True)
