"""A trajectory collection as plain JSON data, in the form that evaluation files and viewers read.

Root first. Objects that JSON does not know become their fields, their `model_dump`, else their text; nothing is copied
deeply and nothing raises.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import Any

from platoon.rollout.trajectory import SubTask, Task, Trajectory, TrajectoryCollection


def to_dict(collection: TrajectoryCollection) -> dict[str, Any]:
    """`{id, trajectories: {id: {id, task, parent_info, steps, reward, finish_message, error_message, misc}}}`."""
    return {
        "id": collection.id,
        "trajectories": {key: trajectory_dict(trajectory) for key, trajectory in collection.trajectories.items()},
    }


def trajectory_dict(trajectory: Trajectory) -> dict[str, Any]:
    """One trajectory, as `to_dict` holds it."""
    parent = trajectory.parent_info
    return {
        "id": trajectory.id,
        "task": None if trajectory.task is None else task_dict(trajectory.task),
        "parent_info": None if parent is None else {"id": parent.id, "fork_step": parent.fork_step},
        "steps": [{"misc": jsonable(step.misc)} for step in trajectory.steps],
        "reward": trajectory.reward,
        "finish_message": trajectory.finish_message,
        "error_message": trajectory.error_message,
        "misc": jsonable(trajectory.misc),
    }


def task_dict(task: Task) -> dict[str, Any]:
    out: dict[str, Any] = {
        "goal": task.goal,
        "id": task.id,
        "max_steps": task.max_steps,
        "misc": jsonable(task.misc),
        "fork_strategy": task.fork_strategy,
    }
    if isinstance(task, SubTask):
        out["parent_tasks"] = [task_dict(parent) for parent in task.parent_tasks]
    return out


def jsonable(value: Any) -> Any:
    """The value as JSON data."""
    if value is None or isinstance(value, str | bool | int | float):
        return value
    if isinstance(value, Mapping):
        return {str(key): jsonable(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [jsonable(inner) for inner in value]
    if is_dataclass(value) and not isinstance(value, type):
        return {field.name: jsonable(getattr(value, field.name)) for field in fields(value)}
    dump = getattr(value, "model_dump", None)
    if callable(dump):
        try:
            return dump(mode="json")
        except (TypeError, ValueError):
            return str(value)
    return str(value)
