"""Reward processors: what turns a finished trajectory into the reward that trains and its named components.

A processor gets the trajectory as plain data (the form that evaluation files hold) and returns (score, {name: value}).
It is named by the decorator's name, by `module:function`, or by what another distribution brings.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from platoon.config.entries import EnvironmentConfig
from platoon.config.problems import ConfigError, nearest
from platoon.credit.rollout import RewardProcessor
from platoon.extensions.boundary import Boundary
from platoon.extensions.components import Components
from platoon.extensions.entry_points import installed, load
from platoon.extensions.names import check_name, import_string, is_reserved
from platoon.extensions.registry import registered
from platoon.extensions.static import name_problem
from platoon.gateway.dump import trajectory_dict
from platoon.rollout.trajectory import Trajectory

ProcessorFn = Callable[[Mapping[str, Any]], tuple[float, Mapping[str, float]]]
FnT = TypeVar("FnT", bound=ProcessorFn)
DELEGATION_CAP = 0.0
_registered: dict[str, ProcessorFn] = {}


class RewardProcessorError(RuntimeError):
    """A processor raised: its rollout has no reward."""


def reward_processor(name: str) -> Callable[[FnT], FnT]:
    """Decorator: register a processor by name. ValueError for a bad or reserved name, or one that is taken."""
    check_name("reward processor", name)

    def register(fn: FnT) -> FnT:
        if is_reserved(name) and not fn.__module__.startswith("platoon."):
            raise ValueError(f"reward processor name {name!r} is reserved for platoon itself; choose one of your own")
        known = _registered.setdefault(name, fn)
        if (known.__module__, known.__qualname__) != (fn.__module__, fn.__qualname__):
            raise ValueError(f"reward processor {name!r} is already registered by {known.__module__}")
        _registered[name] = fn
        return fn

    return register


@reward_processor("platoon-delegation")
def delegation(trajectory: Mapping[str, Any]) -> tuple[float, Mapping[str, float]]:
    """The success, with every `reward/*` note summed over the steps as a component."""
    components: dict[str, float] = {}
    for step in trajectory["steps"]:
        for key, value in (step["misc"].get("reward_misc") or {}).items():
            if key.startswith("reward/") and isinstance(value, int | float) and not isinstance(value, bool):
                components[key] = components.get(key, 0.0) + float(value)
    components.setdefault("reward/success", float(trajectory["reward"]))
    launched = components.setdefault("reward/subagent_launched", 0.0)
    succeeded = components.setdefault("reward/subagent_succeeded", 0.0)
    rate = succeeded / launched if launched else 0.0
    return components["reward/success"] + DELEGATION_CAP * rate, components


def get_reward_processor(reference: str) -> RewardProcessor:
    """The processor of a reference, of trajectories. ConfigError says what is wrong and which names there are."""
    fn = dumped_processor(reference)

    def process(trajectory: Trajectory) -> tuple[float, Mapping[str, float]]:
        return fn(trajectory_dict(trajectory))

    return process


def dumped_processor(reference: str) -> ProcessorFn:
    """The same, of trajectories as files hold them. RewardProcessorError when it raises; TypeError or ValueError when
    what it returns is not a score and its components."""
    fn = _import(reference) if ":" in reference else _dotted(reference) or _named(reference)

    def process(trajectory: Mapping[str, Any]) -> tuple[float, Mapping[str, float]]:
        made: object = None
        with Boundary("reward processor", quiet=True) as caught:
            made = fn(trajectory)
        if caught.error is not None:
            raise RewardProcessorError(f"reward processor {reference} raised {caught.text}") from caught.error
        if not isinstance(made, tuple) or len(made) != 2 or not isinstance(made[1], Mapping):
            raise TypeError(f"reward processor {reference} returned {made!r}, not (score, components)")
        return float(made[0]), {str(key): float(value) for key, value in made[1].items()}

    return process


def add_reward_processors(entries: Sequence[EnvironmentConfig], found: Components) -> None:
    """Look up the processors that entries name, and add them to the components of a configuration."""
    for index, entry in enumerate(entries):
        reference = entry.reward_processor
        if reference is None:
            continue
        try:
            dumped_processor(reference)
        except ConfigError as error:
            found.refuse(("environments", index, "reward_processor"), str(error))
            continue
        point = installed("reward_processor").get(reference) if ":" not in reference else None
        source = point.value if point is not None else reference
        found.add("reward_processor", reference, source=source, label=entry.label)


def _dotted(reference: str) -> ProcessorFn | None:
    """The function of `module.function`, when there is such a module."""
    module, dot, name = reference.rpartition(".")
    if not dot or reference in _registered or name_problem(module, name) is not None:
        return None
    return _import(f"{module}:{name}")


def _named(name: str) -> ProcessorFn:
    if name not in _registered:
        try:
            found = load("reward_processor", name, is_reserved)
        except ValueError as error:
            raise ConfigError(str(error)) from error
        if callable(found):
            _registered.setdefault(name, found)
    if name not in _registered and name in (own := registered("reward_processor")):
        _registered[name] = own[name]
    if name not in _registered:
        known = sorted({*_registered, *installed("reward_processor"), *registered("reward_processor")})
        close = nearest(name, known)
        hint = f"; did you mean {close}?" if close else ""
        raise ConfigError(f"no reward processor is named {name!r}; there are {', '.join(known)}{hint}")
    return _registered[name]


def _import(reference: str) -> ProcessorFn:
    try:
        found = import_string(reference)
    except (ImportError, ValueError) as error:
        raise ConfigError(f"reward processor {reference!r} cannot be imported: {error}") from error
    if not callable(found):
        raise ConfigError(f"reward processor {reference!r} is {found!r}, which cannot be called")
    made: ProcessorFn = found
    return made
