"""Components that other distributions bring, found by entry point and imported only when named."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from importlib.metadata import EntryPoint, entry_points, version
from typing import Any

from packaging.requirements import Requirement

from platoon.extensions.names import is_core

GROUPS = {"harness": "platoon.harnesses", "program": "platoon.programs", "environment": "platoon.environments"}


@cache
def installed(kind: str) -> dict[str, EntryPoint]:
    """Entry points of one kind by name; nothing is imported. The first of a name wins, platoon's own before others."""
    found: dict[str, EntryPoint] = {}
    points = sorted(entry_points(group=GROUPS[kind]), key=lambda point: not is_core(distribution(point)))
    for point in points:
        found.setdefault(point.name, point)
    return found


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
    _check_compatible(point)
    try:
        return point.load()
    except (ImportError, AttributeError, SyntaxError) as error:
        raise ValueError(f"{kind} {name!r} of {distribution(point)} does not load: {error}") from error


def _check_compatible(point: EntryPoint) -> None:
    if point.dist is None:
        return
    running = version("platoon")
    for text in point.dist.requires or ():
        requirement = Requirement(text)
        if requirement.name != "platoon" or not _holds(requirement, point):
            continue
        if not requirement.specifier.contains(running, prereleases=True):
            raise ValueError(
                f"{distribution(point)} needs platoon{requirement.specifier}, and this is {running}; "
                "install a matching version of one of them"
            )


def _holds(requirement: Requirement, point: EntryPoint) -> bool:
    if requirement.marker is None:
        return True
    return any(requirement.marker.evaluate({"extra": extra}) for extra in ("", *point.extras))
