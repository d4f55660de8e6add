"""The environment of a run that platoon 0.4.0 wrote: 64 tasks of one turn, scored by the share of digits replied."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from platoon.envs.contract import ToolResult, ToolSpec
from platoon.rollout.outcome import Outcome
from platoon.rollout.trajectory import Task


class Session:
    sandbox = None

    def __init__(self, task: Task) -> None:
        self.task = task
        self.instruction = task.goal or ""
        self._text = ""

    async def tools(self) -> list[ToolSpec]:
        schema = {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]}
        return [ToolSpec("submit", "The reply itself.", schema, terminal=True)]

    async def call_tool(self, name: str, arguments: Mapping[str, Any]) -> ToolResult:
        self._text = str(arguments.get("text", ""))
        return ToolResult(content=[{"type": "text", "text": "Noted."}], finished=True)

    async def grade(self) -> Outcome:
        return Outcome("scored", {"reward": sum(c.isdigit() for c in self._text) / max(len(self._text), 1)})

    async def fork(self, mode: str = "shared", *, task: Task | None = None) -> Session:
        raise NotImplementedError("this environment has no forks")

    async def close(self) -> None:
        return


class Digits:
    name = "digits"

    async def list_tasks(self, split: str) -> list[str]:
        return [f"{split}:{index}" for index in range(64)]

    async def get_task(self, task_id: str) -> Task:
        return Task(goal=f"Reply with digits ({task_id}).", id=task_id)

    async def open(self, task: Task, *, rollout_id: str) -> Session:
        return Session(task)
