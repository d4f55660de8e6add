"""An environment whose tasks end the way their ids say, whatever the policy does. Needs no environment SDK.

Each opened session leaves a line in the file `opened` of the service's directory; grading a `hold` task waits
there for a file `release`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from platoon.envs.contract import EnvSetupError, ToolResult, ToolSpec
from platoon.rollout.outcome import Outcome
from platoon.rollout.trajectory import Task

SCORES = {"pass": 1.0, "half": 0.5}


class Session:
    sandbox = None

    def __init__(self, task: Task, directory: Path) -> None:
        self.task, self._directory = task, directory
        self.instruction = task.goal or ""
        self._kind = str(task.misc["kind"])

    async def tools(self) -> list[ToolSpec]:
        schema = {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]}
        return [ToolSpec("submit", "The reply itself.", schema, terminal=True)]

    async def call_tool(self, name: str, arguments: Mapping[str, Any]) -> ToolResult:
        if self._kind == "slow":
            await asyncio.Event().wait()
        return ToolResult(content=[{"type": "text", "text": "Noted."}], finished=True)

    async def grade(self) -> Outcome:
        while self._kind == "hold" and not (self._directory / "release").exists():  # noqa: ASYNC110
            await asyncio.sleep(0.005)
        if self._kind == "crash" and not (self._directory / "mended").exists():
            return Outcome.infra("env_error", reason="the grader is away")
        return Outcome("scored", {"reward": SCORES.get(self._kind, 0.0)})

    async def fork(self, mode: str = "shared", *, task: Task | None = None) -> Session:
        raise NotImplementedError("this environment has no forks")

    async def close(self) -> None:
        return None


class Endings:
    """`tasks`: ids `<kind>-<anything>`, with the kinds pass, half, fail, limit, crash, refuse, slow and hold.

    The prompt of `limit` fits no context window of 500 tokens: it ends without a step.
    """

    name = "endings"

    def __init__(self, tasks: list[str], directory: str) -> None:
        self._tasks, self._directory = tasks, Path(directory)

    async def list_tasks(self, split: str) -> list[str]:
        return list(self._tasks)

    async def get_task(self, task_id: str) -> Task:
        kind = task_id.partition("-")[0]
        goal = "Say Ada. " * (1000 if kind == "limit" else 1)
        return Task(goal=goal, id=task_id, misc={"kind": kind})

    async def open(self, task: Task, *, rollout_id: str) -> Session:
        with (self._directory / "opened").open("a") as file:
            file.write(f"{task.id}\n")
        if task.misc["kind"] == "refuse":
            raise EnvSetupError("env_connect", "nobody answers")
        return Session(task, self._directory)


def halved(trajectory: Mapping[str, Any]) -> tuple[float, Mapping[str, float]]:
    """A reward processor."""
    return trajectory["reward"] / 2, {"reward/whole": trajectory["reward"]}
