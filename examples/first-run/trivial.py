"""One turn, no tools: say the word that the prompt names. For trying out the machinery, not the policy."""

from __future__ import annotations

from typing import Any

from openreward.environments import Environment, Split, TextBlock, ToolOutput, terminal, tool
from pydantic import BaseModel

WORDS = ("Ada", "Ben", "Cy", "Dan", "Eve", "Fay", "Gus", "Hal", "Ida", "Jo", "Kit", "Lea", "Max", "Ned", "Ola", "Pam")


class Answer(BaseModel):
    text: str


class Say(Environment):  # type: ignore[misc]  # the SDK ships no types that mypy follows
    @classmethod
    def list_splits(cls) -> list[Split]:
        return [Split(name="train", type="train")]

    @classmethod
    def list_tasks(cls, split: str) -> list[dict[str, Any]]:
        return [{"id": f"say-{word.lower()}", "word": word} for word in WORDS]

    async def get_prompt(self) -> list[TextBlock]:
        return [TextBlock(text=f"Say {self.task_spec['word']}.")]

    @terminal  # type: ignore[untyped-decorator]
    @tool  # type: ignore[untyped-decorator]
    async def submit(self, answer: Answer) -> ToolOutput:
        """The reply itself."""
        said = answer.text.strip() == self.task_spec["word"]
        text = "Right." if said else "Wrong."
        return ToolOutput(blocks=[TextBlock(text=text)], reward=1.0 if said else 0.0, finished=True)
