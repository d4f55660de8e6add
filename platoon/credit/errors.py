"""Which completions were errors: those whose step reports a failure of what the model asked for.

Reads step annotations only; it never looks at the model's own text.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from platoon.credit.convert import step_call
from platoon.rollout.trajectory import TrajectoryStep

_EVENT_KEYS = ("observation_events", "events", "root")


def error_completions(steps: Iterable[TrajectoryStep]) -> frozenset[str]:
    """Ids of the calls whose step holds an error, a traceback in its `output`, or a failed observation."""
    found = set()
    for step in steps:
        call_id = step_call(step)
        if call_id is not None and _is_error(step.misc):
            found.add(call_id)
    return frozenset(found)


def _is_error(misc: Mapping[str, Any]) -> bool:
    if misc.get("error"):
        return True
    output = misc.get("output")
    if isinstance(output, str) and "traceback" in output.lower():
        return True
    return any(_failed_event(misc[key]) for key in _EVENT_KEYS if key in misc)


def _failed_event(value: Any) -> bool:
    """Search events through lists and wrappers for a failed observation."""
    if isinstance(value, list | tuple):
        return any(_failed_event(item) for item in value)
    if not isinstance(value, Mapping):
        return False
    if "observation" in value and _has_error_flag(value["observation"]):
        return True
    if _is_observation(value) and value.get("is_error") is True:
        return True
    return any(_failed_event(value[key]) for key in _EVENT_KEYS if key in value)


def _is_observation(value: Mapping[str, Any]) -> bool:
    names = (value.get(key) for key in ("kind", "type", "class", "__class__"))
    return any(isinstance(name, str) and "observation" in name.lower() for name in names)


def _has_error_flag(value: Any) -> bool:
    if isinstance(value, Mapping):
        return value.get("is_error") is True or any(_has_error_flag(item) for item in value.values())
    if isinstance(value, list | tuple):
        return any(_has_error_flag(item) for item in value)
    return False
