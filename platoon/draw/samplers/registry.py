"""Samplers by reference, and the decorator that registers one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from platoon.draw.registry import ClassT, Registry, method_problems
from platoon.draw.samplers.pass_rate import PassRateSampler
from platoon.extensions.options import OptionSchema as Schema


def _problems(cls: type[Any]) -> list[str]:
    problems = method_problems(cls, ("next", "state_dict", "load_state_dict"), ("observe", "metrics"))
    adaptive = getattr(cls, "adaptive", None)
    if not isinstance(adaptive, bool):
        problems.append("needs the class attribute adaptive: True or False")
    elif adaptive and getattr(cls, "entry_slots", False):
        problems.append("entry_slots needs adaptive = False: slots are handed when a position is drawn")
    return problems


SAMPLERS = Registry(
    "task_sampler", {"auto": None, "weighted": None, "uniform": None, "pass_rate": PassRateSampler}, _problems
)


def task_sampler(
    name: str, options: Schema = None, check: Callable[[Any, Any], None] | None = None
) -> Callable[[ClassT], ClassT]:
    """Class decorator: register a sampler under a name that configs may use."""
    return SAMPLERS.register(name, options, check)
