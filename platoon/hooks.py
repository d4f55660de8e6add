"""Hooks: functions that a project or an extension adds to a run by name, from the module its `package` imports.

    from platoon.hooks import register
    register("trajectory.error_completion_ids", lambda steps: {...})

The names and what each function takes and gives are in `HOOKS`. The same function is kept once; order is kept.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

HOOKS: Mapping[str, str] = {
    "rollout_worker.telemetry": "fn() -> {name: number}, sampled in a rollout worker",
    "rollout_worker.diagnostics": "fn() -> {name: text}, for the report of a worker that hangs",
    "trajectory.error_completion_ids": "fn(steps) -> ids of completions that count as errors",
    "trajectory.message_completion_ids": "fn(steps) -> ids of completions that only say something",
}
_registered: dict[str, list[Callable[..., Any]]] = {}


def register(name: str, fn: Callable[..., Any]) -> Callable[..., Any]:
    """Add a function to a hook; it is returned. ValueError for a name that is no hook, or no function."""
    _known(name)
    if not callable(fn):
        raise ValueError(f"hook {name!r}: {fn!r} cannot be called")
    functions = _registered.setdefault(name, [])
    if fn not in functions:
        functions.append(fn)
    return fn


def hooks(name: str) -> tuple[Callable[..., Any], ...]:
    """The functions of a hook, in the order they were registered."""
    _known(name)
    return tuple(_registered.get(name, ()))


def _known(name: str) -> None:
    if name not in HOOKS:
        raise ValueError(f"no hook is named {name!r}; there are {', '.join(HOOKS)}")
