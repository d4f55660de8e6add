"""The number-search environment: an openreward class with one tool, `guess(number)`.

A hit scores 1.0 and ends the episode; a miss says whether the guess was too low or too high. It never ends by
itself, so an agent that does not find the number scores 0.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pydantic import BaseModel

from platoon.envs.number_search import tasks
from platoon.envs.ors.sdk import load_sdk

if TYPE_CHECKING:
    from openreward.environments import Environment, Split, TextBlock, ToolOutput, tool
else:  # the SDK as platoon prepares it, whoever imports this module first
    sdk = load_sdk()
    Environment, Split, TextBlock, ToolOutput, tool = (
        sdk.Environment,
        sdk.Split,
        sdk.TextBlock,
        sdk.ToolOutput,
        sdk.tool,
    )


class Guess(BaseModel):
    number: int


class NumberSearchEnvironment(Environment):  # type: ignore[misc]  # the SDK ships no types that mypy follows
    @classmethod
    def list_splits(cls) -> list[Split]:
        return [Split(name="train", type="train"), Split(name="val", type="validation")]

    @classmethod
    def list_tasks(cls, split: str) -> tuple[dict[str, Any], ...]:
        return tasks.task_specs(split)

    async def get_prompt(self) -> list[TextBlock]:
        return [TextBlock(text=self.task_spec["goal"])]

    @tool  # type: ignore[untyped-decorator]
    async def guess(self, arguments: Guess) -> ToolOutput:
        """Guess the hidden number. The reply says whether the guess was too low or too high."""
        target = self.task_spec["misc"]["target"]
        if arguments.number == target:
            return ToolOutput(blocks=[TextBlock(text="Correct!")], reward=1.0, finished=True)
        word = "low" if arguments.number < target else "high"
        return ToolOutput(blocks=[TextBlock(text=f"{arguments.number} is too {word}.")])
