"""Guess a number from 1 to 100. An environment is an openreward class: tasks, a prompt, tools."""

from __future__ import annotations

from typing import Any

from openreward.environments import Environment, Split, TextBlock, ToolOutput, tool
from pydantic import BaseModel


class Guess(BaseModel):
    number: int


class GuessTheNumber(Environment):  # type: ignore[misc]  # the SDK ships no types that mypy follows
    @classmethod
    def list_splits(cls) -> list[Split]:
        return [Split(name="train", type="train"), Split(name="eval", type="test")]

    @classmethod
    def list_tasks(cls, split: str) -> list[dict[str, Any]]:
        numbers = range(1, 101)
        return [
            {"id": f"number-{number}", "number": number}
            for number in numbers
            if (number % 10 == 7) == (split == "eval")
        ]

    async def get_prompt(self) -> list[TextBlock]:
        return [TextBlock(text="I think of a number from 1 to 100. Find it with the tool guess.")]

    @tool  # type: ignore[untyped-decorator]
    async def guess(self, arguments: Guess) -> ToolOutput:
        """Guess the number. The answer says whether it is higher or lower."""
        number = self.task_spec["number"]
        if arguments.number == number:
            return ToolOutput(blocks=[TextBlock(text="Correct!")], reward=1.0, finished=True)
        return ToolOutput(blocks=[TextBlock(text="Higher." if arguments.number < number else "Lower.")])
