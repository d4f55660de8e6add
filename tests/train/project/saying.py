"""A light environment service: one turn, say the word that the prompt names. Needs no environment SDK."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

from platoon.envs.contract import EnvNotPrepared, ToolResult, ToolSpec
from platoon.rollout.outcome import Outcome
from platoon.rollout.trajectory import Task

WORDS = ("Ada", "Ben", "Cy", "Dan", "Eve", "Fay", "Gus", "Hal", "Ida", "Jo", "Kit", "Lea", "Max", "Ned", "Ola", "Pam")
OPENED: list[str] = []
CLOSED: list[str] = []


class Session:
    sandbox = None

    def __init__(self, task: Task, rollout_id: str) -> None:
        self.task, self._rollout_id = task, rollout_id
        self.instruction = task.goal or ""
        self._reward: float | None = None
        OPENED.append(rollout_id)

    async def tools(self) -> list[ToolSpec]:
        schema = {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]}
        return [ToolSpec("submit", "The reply itself.", schema, terminal=True)]

    async def call_tool(self, name: str, arguments: Mapping[str, Any]) -> ToolResult:
        self._reward = float(str(arguments.get("text", "")).strip() == self.task.misc["word"])
        return ToolResult(content=[{"type": "text", "text": "Noted."}], finished=True, reward=self._reward)

    async def grade(self) -> Outcome:
        return Outcome("scored", {"reward": self._reward or 0.0})

    async def fork(self, mode: str = "shared", *, task: Task | None = None) -> Session:
        raise NotImplementedError("this environment has no forks")

    async def close(self) -> None:
        CLOSED.append(self._rollout_id)


class Saying:
    name = "saying"

    async def list_tasks(self, split: str) -> list[str]:
        return [f"{split}-{word.lower()}" for word in (WORDS[:12] if split == "train" else WORDS[12:])]

    async def task_columns(self, task_ids: Sequence[str]) -> Mapping[str, Mapping[str, str]]:
        return {task_id: {"length": str(len(task_id.partition("-")[2]))} for task_id in task_ids}

    async def get_task(self, task_id: str) -> Task:
        word = task_id.partition("-")[2].title()
        return Task(goal=f"Say {word}.", id=task_id, misc={"word": word})

    async def open(self, task: Task, *, rollout_id: str) -> Session:
        return Session(task, rollout_id)


class HeldOut(Saying):
    """The first `holdout` words are evaluated on and never train."""

    def __init__(self, holdout: int = 0) -> None:
        self._holdout = holdout

    async def list_tasks(self, split: str) -> list[str]:
        ids = await super().list_tasks("train")
        return ids[self._holdout :] if split == "train" else ids[: self._holdout] or await super().list_tasks(split)

    def hold_out_record(self) -> Mapping[str, Any]:
        held = [f"train-{word.lower()}" for word in WORDS[: self._holdout]]
        return {"holdout": self._holdout, "dataset": "words", "held_out": held}


class StuckSession(Session):
    async def call_tool(self, name: str, arguments: Mapping[str, Any]) -> ToolResult:
        await asyncio.Event().wait()
        raise AssertionError("nothing sets that event")


class Stuck(Saying):
    """Tasks whose only tool never returns."""

    async def open(self, task: Task, *, rollout_id: str) -> Session:
        return StuckSession(task, rollout_id)


class Unprepared(Saying):
    """Lists its tasks, but nothing was made ready to play them."""

    async def open(self, task: Task, *, rollout_id: str) -> Session:
        raise EnvNotPrepared("no images; run platoon prepare")


class BrokenSession(Session):
    async def grade(self) -> Outcome:
        raise RuntimeError("the grader is broken")


class Broken(Saying):
    """No rollout is ever graded."""

    async def open(self, task: Task, *, rollout_id: str) -> Session:
        return BrokenSession(task, rollout_id)


class Unlisted(Saying):
    """Its list of tasks cannot be made."""

    async def list_tasks(self, split: str) -> list[str]:
        raise ZeroDivisionError("no tasks to share")
