"""Step environments that tests play."""

from __future__ import annotations

from collections import Counter
from typing import Any

import platoon as pt

COUNTS: Counter[str] = Counter()


class Guess:
    """Guess `task.misc["number"]` (7 without one): a miss costs 0.25, a hit gives 1 and ends."""

    async def reset(self, task: pt.Task) -> str:
        COUNTS["reset"] += 1
        self.number = task.misc.get("number", 7)
        return task.goal or "Guess."

    async def step(self, action: str) -> tuple[str, float, bool]:
        if not action.strip().isdigit():
            return "Write a number.", -0.25, False
        if int(action) == self.number:
            return "Correct!", 1.0, True
        return ("Higher." if int(action) < self.number else "Lower."), -0.25, False

    async def close(self) -> None:
        COUNTS["closed"] += 1


class Breaks(Guess):
    """Good for one step, after which `gives` is what it gives; an exception is raised. Its close breaks too."""

    gives: Any = LookupError("the board is gone")

    async def step(self, action: str) -> Any:
        if action == "1":
            return "Go on.", 0.5, False
        if isinstance(self.gives, BaseException):
            raise self.gives
        return self.gives

    async def close(self) -> None:
        raise OSError("nothing to close")


class Unready(Guess):
    async def reset(self, task: pt.Task) -> str:
        raise ConnectionError("no board")


def giving(value: Any) -> type[Breaks]:
    return type("Breaks", (Breaks,), {"gives": value})


GuessEnvironment = pt.gym.as_environment(
    Guess,
    name="GuessEnvironment",
    tasks={
        "train": [{"id": "seven", "goal": "Find my number.", "max_steps": 3, "number": 7}],
        "eval": [{"id": "nine", "misc": {"number": 9}}],
    },
)
BreaksEnvironment = pt.gym.as_environment(Breaks, name="BreaksEnvironment")
UnreadyEnvironment = pt.gym.as_environment(Unready, name="UnreadyEnvironment")

guess = pt.harness("acme-guess")(pt.gym.loop(Guess, max_turns=3, system="You guess."))
