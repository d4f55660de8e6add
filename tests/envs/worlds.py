"""Small openreward environments that tests play: each ends in a way of its own and counts what it opened."""

from __future__ import annotations

import signal
import threading
from collections import Counter
from typing import Any

from openreward.environments import Environment, TextBlock, ToolOutput, terminal, tool
from pydantic import BaseModel

COUNTS: Counter[str] = Counter()
STARTED = threading.Event()
RELEASE = threading.Event()


def hold() -> None:
    """Say that the environment's code runs, then keep it running until RELEASE is set."""
    STARTED.set()
    RELEASE.wait(30)


def holding() -> None:
    """Prepare for an environment that holds."""
    STARTED.clear()
    RELEASE.clear()


class Number(BaseModel):
    number: int


class Answer(BaseModel):
    text: str


def said(text: str, **fields: Any) -> ToolOutput:
    return ToolOutput(blocks=[TextBlock(text=text)], **fields)


class Counting(Environment):  # type: ignore[misc]
    """Opens and closes count in COUNTS; every other world derives from it."""

    @classmethod
    def list_splits(cls) -> list[str]:
        return ["train", "test"]

    @classmethod
    def list_tasks(cls, split: str) -> list[dict[str, Any]]:
        return [{"id": f"{split}-{name}", "goal": f"play {name}"} for name in ("one", "two", "three")]

    def setup(self) -> None:
        COUNTS["opened"] += 1

    def teardown(self) -> None:
        COUNTS["closed"] += 1

    def get_prompt(self) -> list[TextBlock]:
        return [TextBlock(text=str(self.task_spec["goal"]))]

    @tool  # type: ignore[untyped-decorator]
    def add(self, arguments: Number) -> ToolOutput:
        """Add a number. Runs on a thread."""
        return said(f"on {threading.current_thread().name}: {arguments.number}")

    @tool  # type: ignore[untyped-decorator]
    async def finish(self, arguments: Number) -> ToolOutput:
        """End with a reward."""
        return said("done", reward=float(arguments.number), finished=True)


class Submits(Counting):
    """A terminal tool in the SDK's sense: hidden, fed with the final message."""

    @classmethod
    def list_tasks(cls, split: str) -> list[dict[str, Any]]:
        return [{"name": "only", "goal": "say yes"}]

    @terminal  # type: ignore[untyped-decorator]
    @tool  # type: ignore[untyped-decorator]
    async def submit(self, arguments: Answer) -> ToolOutput:
        """The final answer."""
        return said("graded", reward=float(arguments.text.strip() == "yes"), finished=True)


class Invalid(Counting):
    @tool  # type: ignore[untyped-decorator]
    def declare(self) -> ToolOutput:
        """End without a valid grade."""
        return said("broken task", reward=1.0, finished=True, metadata={"invalid": True, "reason": "no answer key"})

    @tool  # type: ignore[untyped-decorator]
    def forget(self) -> ToolOutput:
        """End without a reward."""
        return said("no reward", finished=True)


class Raising(Counting):
    """`boom` is an ordinary tool that raises; `end` may end the episode and raises too."""

    platoon_terminal_tools = ("end",)

    @tool  # type: ignore[untyped-decorator]
    def boom(self) -> ToolOutput:
        """Raise."""
        raise ZeroDivisionError("in the tool")

    @tool  # type: ignore[untyped-decorator]
    def end(self) -> ToolOutput:
        """Raise while grading."""
        raise ZeroDivisionError("in the grader")

    @tool  # type: ignore[untyped-decorator]
    def leave(self) -> ToolOutput:
        """Call sys.exit."""
        raise SystemExit(3)


def alarm_grader() -> float:
    """A reward function that arms an alarm, as some symbolic-math checkers do."""

    def expired(*_: object) -> None:
        raise TimeoutError

    before = signal.signal(signal.SIGALRM, expired)
    signal.alarm(1)
    try:
        return 1.0
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


class AlarmOnThread(Counting):
    """Grades in a plain tool that nothing declares as the one that ends the episode."""

    @tool  # type: ignore[untyped-decorator]
    def check(self) -> ToolOutput:
        """Grade, on a thread."""
        return said("graded", reward=alarm_grader(), finished=True)


class AlarmOnLoop(Counting):
    @tool  # type: ignore[untyped-decorator]
    async def check(self) -> ToolOutput:
        """Grade, on the event loop."""
        return said("graded", reward=alarm_grader(), finished=True)


class AlarmHook(Counting):
    def platoon_grade(self) -> float:
        return alarm_grader()


class Hook(Counting):
    """Graded from its state when nothing was submitted."""

    def platoon_grade(self) -> dict[str, Any]:
        return {"reward": 0.75, "metadata": {"seen": True}}


class BadSetup(Counting):
    def setup(self) -> None:
        super().setup()
        raise ConnectionError("no database")


class BadPrompt(Counting):
    def get_prompt(self) -> list[TextBlock]:
        raise RuntimeError("no prompt")


class BadTeardown(Counting):
    def teardown(self) -> None:
        super().teardown()
        raise RuntimeError("cannot close")


class SlowSetup(Counting):
    """Setup runs until RELEASE is set."""

    def setup(self) -> None:
        super().setup()
        hold()


class SlowTool(Counting):
    """The tool `work` runs until RELEASE is set."""

    @tool  # type: ignore[untyped-decorator]
    def work(self) -> ToolOutput:
        """Work for long."""
        hold()
        COUNTS["closed_while_working"] += COUNTS["closed"]
        return said("worked")


class SlowGrade(Counting):
    """The grader runs until RELEASE is set."""

    def platoon_grade(self) -> float:
        hold()
        return 1.0


class SetupAndPromptAreAsync(Counting):
    async def setup(self) -> None:  # type: ignore[override]
        COUNTS["opened"] += 1

    async def get_prompt(self) -> list[TextBlock]:  # type: ignore[override]
        return [TextBlock(text="async prompt")]


class Tally(Counting):
    """Counts what was added; ends when asked, with the sum as reward. Nothing to tear down."""

    setup = Environment.setup
    teardown = Environment.teardown

    def __init__(self, task_spec: dict[str, Any], secrets: dict[str, str] | None = None) -> None:
        super().__init__(task_spec, secrets or {})
        self.state = {"sum": 0}

    @tool  # type: ignore[untyped-decorator]
    def add(self, arguments: Number) -> ToolOutput:
        """Add to the sum."""
        self.state["sum"] += arguments.number
        return said(str(self.state["sum"]))

    @tool  # type: ignore[untyped-decorator]
    def end(self) -> ToolOutput:
        """End with the sum."""
        return said("ended", reward=float(self.state["sum"]), finished=True)


class TallyWithChildren(Counting):
    """Children share the state and have a goal and a grade of their own."""

    def __init__(self, task_spec: dict[str, Any], secrets: dict[str, str] | None = None) -> None:
        super().__init__(task_spec, secrets or {})
        self.state = {"sum": 0}

    @tool  # type: ignore[untyped-decorator]
    def add(self, arguments: Number) -> ToolOutput:
        """Add to the sum."""
        self.state["sum"] += arguments.number
        return said(str(self.state["sum"]))

    def platoon_fork(self, task_spec: dict[str, Any]) -> Any:
        if task_spec["goal"] == "nothing":
            return None
        child = TallyWithChildren(task_spec)
        child.state = self.state
        return child

    def platoon_grade(self) -> float:
        return float(str(self.state["sum"]) == str(self.task_spec["goal"]))
