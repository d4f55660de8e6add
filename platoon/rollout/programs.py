"""Programs: how an episode's agent run and grade are put together. `single` runs one agent and grades;
`gym` takes the return of a step environment.

A program is an async function of an `EpisodeContext` that returns an `Outcome`. It is named `name[@version]` when
registered with the decorator, or `module:function`.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from typing import TypeVar

from platoon.config.problems import ConfigError, nearest
from platoon.envs.ors.calls import numeric
from platoon.extensions.entry_points import installed, load
from platoon.extensions.names import (
    RESERVED_PROGRAMS,
    check_name,
    check_version,
    import_string,
    is_reserved,
    split_reference,
    version_matches,
)
from platoon.rollout.episode_context import EpisodeContext
from platoon.rollout.outcome import Outcome
from platoon.rollout.subagent_rewards import propagate_root_success, zero_subagent_rewards

EpisodeProgram = Callable[[EpisodeContext], Awaitable[Outcome]]
ProgramFn = TypeVar("ProgramFn", bound=EpisodeProgram)
_registered: dict[str, dict[str, EpisodeProgram]] = {}


def program(name: str, *, version: str = "1") -> Callable[[ProgramFn], ProgramFn]:
    """Decorator: register an async function of one `EpisodeContext` as a program; it is returned unchanged.

    ValueError for a name that breaks the rules, is reserved, or already belongs to another function.
    """
    check_name("program", name)
    check_version("program", version)

    def mark(fn: ProgramFn) -> ProgramFn:
        source = _source(fn)
        if is_reserved(name, RESERVED_PROGRAMS) and not source.startswith("platoon."):
            raise ValueError(f"program name {name!r} is reserved for platoon itself; choose one of your own")
        is_async: bool = inspect.iscoroutinefunction(fn)
        if not is_async:
            raise ValueError(f"program {name!r}: {source} must be an async function (async def)")
        known = _registered.setdefault(name, {}).setdefault(version, fn)
        if _source(known) != source:
            raise ValueError(f"program {name}@{version} is already registered by {_source(known)}")
        _registered[name][version] = fn
        return fn

    return mark


def get_program(reference: str) -> EpisodeProgram:
    """The program of a reference. ConfigError says what is wrong and which names there are."""
    if ":" in reference:
        return _import(reference)
    name, wanted = split_reference(reference)
    if name not in _registered:
        try:
            load("program", name, lambda text: is_reserved(text, RESERVED_PROGRAMS))
        except ValueError as error:
            raise ConfigError(str(error)) from error
    versions = _registered.get(name, {})
    matching = [fn for version, fn in versions.items() if wanted is None or version_matches(wanted, version)]
    if len(matching) == 1:
        return matching[0]
    if not versions:
        known = sorted({*_registered, *installed("program")})
        close = nearest(name, known)
        hint = f"; did you mean {close}?" if close else ""
        raise ConfigError(f"no program is named {name!r}; there are {', '.join(known)}{hint}")
    refs = ", ".join(f"{name}@{version}" for version in versions)
    what = "fits several versions" if matching else "has no such version"
    raise ConfigError(f"program {reference!r} {what}; there are {refs}")


def _import(reference: str) -> EpisodeProgram:
    try:
        found = import_string(reference)
    except (ImportError, ValueError) as error:
        raise ConfigError(f"program {reference!r} cannot be imported: {error}") from error
    if not callable(found):
        raise ConfigError(f"program {reference!r} is {found!r}, which cannot be called")
    made: EpisodeProgram = found
    return made


def _source(fn: object) -> str:
    return f"{getattr(fn, '__module__', '?')}:{getattr(fn, '__qualname__', repr(fn))}"


@program("single")
async def single(episode: EpisodeContext) -> Outcome:
    """Run the root agent, then grade; rewards over the agent tree as the rollout's config says."""
    await episode.run()
    if episode.config.skip_subagent_reward_computation:
        episode.add_finalizer(zero_subagent_rewards)
    if episode.config.propagate_root_success:
        episode.add_finalizer(propagate_root_success)
    return await episode.grade()


@program("gym")
async def gym(episode: EpisodeContext) -> Outcome:
    """Score `gym_return`, which the harness noted, when the agent completed or used up its steps; else the grade."""
    result = await episode.run()
    noted = episode.root.misc.get("gym_return")
    if result.status not in ("completed", "limit") or noted is None:
        return await episode.grade()
    total = numeric(noted)
    if total is None:
        raise ValueError(f"gym_return must be a finite number, not {noted!r}")
    return Outcome("scored", {"reward": total})
