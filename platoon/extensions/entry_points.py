"""Components that other distributions bring, found by entry point and imported only when named.

An entry point is loaded once a process; a failure is kept and raised again, and touches no other. No lock is held
while foreign code is imported.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cache
from importlib.metadata import Distribution, EntryPoint, entry_points
from typing import Any

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

import platoon
from platoon.config.variables import IGNORE_REQUIREMENTS, ignores_extension_requirements
from platoon.extensions.boundary import Boundary
from platoon.extensions.names import is_core

GROUPS = {
    "harness": "platoon.harnesses",
    "program": "platoon.programs",
    "environment": "platoon.environments",
    "reward_processor": "platoon.reward_processors",
    "task_sampler": "platoon.task_samplers",
    "group_admission": "platoon.group_admissions",
}
RETIRED_GROUP = "platoon.plugins"
_log = logging.getLogger("platoon.extensions")


@cache
def installed(kind: str) -> dict[str, EntryPoint]:
    """Entry points of one kind by name; nothing is imported. The first of a name wins, platoon's own before others."""
    found: dict[str, EntryPoint] = {}
    for point in all_installed(kind):
        found.setdefault(point.name, point)
    return found


def all_installed(kind: str) -> list[EntryPoint]:
    """Every entry point of a kind, also those whose name another one has."""
    return sorted(entry_points(group=GROUPS[kind]), key=lambda point: not is_core(distribution(point)))


def distribution(point: EntryPoint) -> str:
    """The name of the distribution that brings an entry point."""
    return point.dist.name if point.dist is not None else "unknown"


def load(kind: str, name: str, reserved: Callable[[str], bool]) -> Any:
    """What the entry point `name` gives, or None when there is none.

    A reserved name of another distribution counts as absent. ValueError when the distribution was made for another
    version of platoon, or when loading fails.
    """
    point = installed(kind).get(name)
    if point is None or (reserved(name) and not is_core(distribution(point))):
        return None
    return load_point(kind, point)


@dataclass
class _Loading:
    """One load of an entry point, shared by all threads that ask for it."""

    thread: int
    done: threading.Event = field(default_factory=threading.Event)
    value: Any = None
    problem: str | None = None


_loads: dict[tuple[str, str, str, str], _Loading] = {}
_guard = threading.Lock()


def load_point(kind: str, point: EntryPoint) -> Any:
    """What an entry point gives; it is imported the first time only. ValueError says why it cannot be."""
    key = (kind, point.name, point.value, distribution(point))
    with _guard:
        loading = _loads.get(key)
        first = loading is None
        if loading is None:
            loading = _loads[key] = _Loading(threading.get_ident())
    if first:
        try:
            loading.value, loading.problem = _load(kind, point)
        finally:
            loading.done.set()
    elif not loading.done.is_set():
        if loading.thread == threading.get_ident():
            raise ValueError(f"{kind} {point.name!r} of {distribution(point)} names itself while it is imported")
        loading.done.wait()
    if loading.problem is not None:
        raise ValueError(loading.problem)
    return loading.value


def loaded_points() -> list[tuple[str, str, str]]:
    """(module, distribution, entry point name) of every entry point that was loaded in this process."""
    with _guard:
        done = [key for key, loading in _loads.items() if loading.done.is_set() and loading.problem is None]
    return [(value.partition(":")[0].strip(), dist, name) for _, name, value, dist in done]


def _load(kind: str, point: EntryPoint) -> tuple[Any, str | None]:
    problem = incompatibility(point.dist)
    if problem is not None:
        if not ignores_extension_requirements():
            return None, f"{problem}; install a matching version of one of them, or set {IGNORE_REQUIREMENTS}=1"
        _log.warning("%s; loaded all the same, because %s is set", problem, IGNORE_REQUIREMENTS)
    with Boundary("extension", quiet=True) as caught:
        return point.load(), None
    return None, f"{kind} {point.name!r} of {distribution(point)} does not load: {caught.text}"


def incompatibility(dist: Distribution | None) -> str | None:
    """What of a distribution's requirements on platoon this version does not meet, or None."""
    for requirement in platoon_requirements(dist):
        if not requirement.specifier.contains(platoon.__version__, prereleases=True):
            name = dist.name if dist is not None else "unknown"
            return f"{name} needs platoon{requirement.specifier}, and this is {platoon.__version__}"
    return None


def platoon_requirements(dist: Distribution | None) -> Iterator[Requirement]:
    """The requirements on platoon whose marker holds, without extra or with one of the distribution's extras."""
    if dist is None:
        return
    extras = ("", *(dist.metadata.get_all("Provides-Extra") or ()))
    for text in dist.requires or ():
        try:
            requirement = Requirement(text)
        except InvalidRequirement:
            continue
        marker = requirement.marker
        holds = marker is None or any(marker.evaluate({"extra": extra}) for extra in extras)
        if canonicalize_name(requirement.name) == "platoon" and holds:
            yield requirement
