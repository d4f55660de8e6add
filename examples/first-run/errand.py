"""The errand: find a parcel by asking the right people and opening the right box.

A task is a chain of people and a box number. The instruction names the first person; each person of the chain names
the next one or the box. Only who was named knows anything, and only the box that was named scores: 1.0, another 0.0.
Every task has a box of its own, so a fixed sequence of calls solves one task at most. Nothing is random in an episode.
"""

from __future__ import annotations

import random
from functools import cache
from typing import Any

from openreward.environments import Environment, Split, TextBlock, ToolOutput, tool
from pydantic import BaseModel

PEOPLE = ("Ada", "Ben", "Cy", "Dan", "Eve", "Fay", "Gus", "Hal", "Ida", "Jo", "Kit", "Lea", "Max", "Ned", "Ola", "Pam")
BOXES = range(10, 100)
TASKS = {"train": 60, "test": 30}
LONGEST_CHAIN = 3
NO_IDEA = "No idea."


class Ask(BaseModel):
    name: str


class Open(BaseModel):
    box: int


@cache
def specs(split: str) -> tuple[dict[str, Any], ...]:
    """The split's tasks: {id, people, box}. The id is the chain itself; chains of 1, 2 and 3 people take turns."""
    rng = random.Random(11)
    boxes = rng.sample(BOXES, len(BOXES))
    made: dict[str, list[dict[str, Any]]] = {}
    for name, count in TASKS.items():
        made[name] = []
        for number in range(count):
            people, box = rng.sample(PEOPLE, 1 + number % LONGEST_CHAIN), boxes.pop()
            made[name].append({"id": "-".join([*people, str(box)]).lower(), "people": people, "box": box})
    return tuple(made[split])


class Errand(Environment):  # type: ignore[misc]  # the SDK ships no types that mypy follows
    def __init__(self, task_spec: dict[str, Any], secrets: dict[str, str] | None = None) -> None:
        super().__init__(task_spec, secrets or {})
        self.people: list[str] = list(task_spec["people"])
        self.box: int = task_spec["box"]
        self.asked = 0  # how many people of the chain have spoken

    @classmethod
    def list_splits(cls) -> list[Split]:
        return [Split(name="train", type="train"), Split(name="test", type="test")]

    @classmethod
    def list_tasks(cls, split: str) -> list[dict[str, Any]]:
        return list(specs(split))

    async def get_prompt(self) -> list[TextBlock]:
        return [TextBlock(text=f"Find the parcel. Ask {self.people[0]}.")]

    @tool  # type: ignore[untyped-decorator]
    async def ask(self, arguments: Ask) -> ToolOutput:
        """Ask a person."""
        known = self.people[: self.asked + 1]
        if arguments.name not in known:
            return ToolOutput(blocks=[TextBlock(text=NO_IDEA)])
        place = known.index(arguments.name)
        self.asked = max(self.asked, place + 1)
        last = place + 1 == len(self.people)
        answer = f"Look in box {self.box}." if last else f"Ask {self.people[place + 1]}."
        return ToolOutput(blocks=[TextBlock(text=answer)])

    @tool  # type: ignore[untyped-decorator]
    async def open(self, arguments: Open) -> ToolOutput:
        """Open a box. Only one try."""
        found = arguments.box == self.box and self.asked == len(self.people)
        text = "The parcel!" if found else "Empty."
        return ToolOutput(blocks=[TextBlock(text=text)], reward=1.0 if found else 0.0, finished=True)
