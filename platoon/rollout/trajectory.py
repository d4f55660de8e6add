"""What a rollout leaves behind: tasks, trajectories, steps, and the exact tokens of every model call.

Plain records: every room may import this module. Token arrays are numpy; nothing here talks to a model.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

Tokens = npt.NDArray[np.int32]
Floats = npt.NDArray[np.float32]


@dataclass
class Task:
    """One problem. `max_steps` is the root agent's step budget; None leaves it to the run."""

    goal: str | None = None
    id: str | None = None
    max_steps: int | None = None
    misc: dict[str, Any] = field(default_factory=dict)
    fork_strategy: Literal["subtask", "task"] = "subtask"

    def __str__(self) -> str:
        lines = [f"Goal: {self.goal}"]
        if self.max_steps is not None:
            lines.append(f"Step budget: {self.max_steps}")
        return "\n".join(lines)

    def fork(self, goal: str, max_steps: int | None = None, task_misc: dict[str, Any] | None = None) -> Task:
        """A child's task under a new id; misc is shared unless `task_misc` is given."""
        misc = self.misc if task_misc is None else task_misc
        if self.fork_strategy == "task":
            return Task(goal=goal, id=str(uuid.uuid4()), max_steps=max_steps, misc=misc, fork_strategy="task")
        parents = self.parent_tasks if isinstance(self, SubTask) else []
        return SubTask(goal=goal, id=str(uuid.uuid4()), max_steps=max_steps, misc=misc, parent_tasks=[*parents, self])


@dataclass
class SubTask(Task):
    """A task handed to a subagent. `parent_tasks` lists its ancestors, oldest first."""

    parent_tasks: list[Task] = field(default_factory=list)

    def __str__(self) -> str:
        lines = [super().__str__()]
        for level, parent in enumerate(reversed(self.parent_tasks), start=1):
            lines.append(f"Parent task {level}: {parent.goal}")
        return "\n".join(lines)


@dataclass(frozen=True)
class ParentInfo:
    """`id`: the parent's trajectory id. `fork_step`: calls the parent had recorded when the child opened."""

    id: str
    fork_step: int


@dataclass
class TrajectoryStep:
    misc: dict[str, Any] = field(default_factory=dict)


@dataclass
class Trajectory:
    """One agent's part of a rollout: one step per recorded model call that is not a judge's."""

    id: str
    task: Task | None = None
    parent_info: ParentInfo | None = None
    steps: list[TrajectoryStep] = field(default_factory=list)
    reward: float = 0.0
    finish_message: str | None = None
    error_message: str | None = None
    misc: dict[str, Any] = field(default_factory=dict)

    @property
    def interrupted(self) -> bool:
        """True when it must not train: cancelled, timed out, or without a valid outcome."""
        return any(self.misc.get(key) for key in ("trajectory_cancelled", "trajectory_timed_out", "trajectory_invalid"))


@dataclass
class TrajectoryCollection:
    """All trajectories of one rollout, root first (consumers rely on the order)."""

    id: str = field(default_factory=lambda: str(uuid.uuid4()))
    trajectories: dict[str, Trajectory] = field(default_factory=dict)

    @property
    def root(self) -> Trajectory:
        """The root agent's trajectory. ValueError when the collection is empty."""
        for trajectory in self.trajectories.values():
            return trajectory
        raise ValueError(f"trajectory collection {self.id} is empty")

    def depths(self) -> dict[str, int]:
        """Trajectory id to distance from the root; an unknown or missing parent counts as the root (0)."""
        found: dict[str, int] = {}

        def depth(key: str, seen: frozenset[str]) -> int:
            if key not in found:
                parent = self.trajectories[key].parent_info
                known = parent is not None and parent.id in self.trajectories and parent.id not in seen
                found[key] = depth(parent.id, seen | {key}) + 1 if known and parent is not None else 0
            return found[key]

        for key in self.trajectories:
            depth(key, frozenset({key}))
        return found


@dataclass(frozen=True, slots=True)
class Interaction:
    """The tokens of one model call.

    The call's full prompt is `suffix` when `continues` is None, else the full prompt of the call named by
    `continues`, then that call's `tokens`, then `suffix`: a conversation of n turns is stored once, not n times.
    `suffix_S` and `tokens_A` are int32, `logprobs_A` float32 (untempered, natural log). `version` is the policy
    version that sampled. `routing_id` names the service's replica where it gives one.
    """

    suffix_S: Tokens
    tokens_A: Tokens
    logprobs_A: Floats
    version: int
    continues: str | None = None
    routing_id: int | None = None
    policy: str = "main"


class Interactions(Mapping[str, Interaction]):
    """Call id to `Interaction`, for one rollout's whole agent tree, in recording order."""

    def __init__(self) -> None:
        self._calls: dict[str, Interaction] = {}
        self._prompt_length: dict[str, int] = {}

    def add(self, call_id: str, call: Interaction) -> None:
        """Record a call. KeyError when it continues a call that is not here; ValueError on a repeated id."""
        if call_id in self._calls:
            raise ValueError(f"call {call_id} is already recorded")
        before = 0
        if call.continues is not None:
            before = self._prompt_length[call.continues] + len(self._calls[call.continues].tokens_A)
        self._prompt_length[call_id] = before + len(call.suffix_S)
        self._calls[call_id] = call

    def prompt_length(self, call_id: str) -> int:
        """Number of tokens of the call's full prompt."""
        return self._prompt_length[call_id]

    def prompt(self, call_id: str) -> Tokens:
        """The call's full prompt, rebuilt: int32[prompt_length]."""
        parts: list[Tokens] = []
        key: str | None = call_id
        while key is not None:
            call = self._calls[key]
            parts.append(call.suffix_S)
            key = call.continues
            if key is not None:
                parts.append(self._calls[key].tokens_A)
        return np.concatenate(parts[::-1]) if parts else np.empty(0, np.int32)

    def __getitem__(self, call_id: str) -> Interaction:
        return self._calls[call_id]

    def __iter__(self) -> Iterator[str]:
        return iter(self._calls)

    def __len__(self) -> int:
        return len(self._calls)
