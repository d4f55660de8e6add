"""What is installed: every component of every kind, built in or brought by a distribution, and what is wrong with it.

Nothing is imported unless a check is asked to load.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import Distribution, EntryPoint, entry_points
from typing import Literal

from packaging.utils import canonicalize_name

import platoon
from platoon.config.problems import ConfigError
from platoon.extensions.entry_points import (
    GROUPS,
    RETIRED_GROUP,
    all_installed,
    distribution,
    incompatibility,
    installed,
    load_point,
    platoon_requirements,
)
from platoon.extensions.names import RESERVED_HARNESSES, RESERVED_PROGRAMS, check_name, is_core, is_reserved

Status = Literal["ok", "incompatible", "bad name", "reserved name"]
_ALSO_RESERVED = {"harness": RESERVED_HARNESSES, "program": RESERVED_PROGRAMS}
_UPPER = ("<", "<=", "==", "~=", "===")


@dataclass(frozen=True)
class Component:
    """One component. `value`: where its object is, `module:attribute`; `requires`: the requirements on platoon."""

    kind: str
    name: str
    distribution: str
    version: str | None
    value: str
    status: Status = "ok"
    builtin: bool = False
    requires: tuple[str, ...] = ()


@dataclass(frozen=True)
class Finding:
    severity: Literal["error", "warning"]
    distribution: str
    message: str


Builtins = Mapping[str, Mapping[str, str]]  # kind -> name -> where it is


def components(builtins: Builtins, kind: str | None = None) -> list[Component]:
    """Built-in components first, then what other distributions bring, by kind and name."""
    kinds = [kind] if kind is not None else list(GROUPS)
    rows = [
        Component(one, name, "platoon", platoon.__version__, value, builtin=True)
        for one in kinds
        for name, value in sorted(builtins.get(one, {}).items())
    ]
    for one in kinds:
        rows += [_component(one, point) for point in sorted(all_installed(one), key=lambda point: point.name)]
    return rows


def _component(kind: str, point: EntryPoint) -> Component:
    dist = point.dist
    requires = tuple(str(requirement) for requirement in platoon_requirements(dist))
    version = dist.version if dist is not None else None
    return Component(kind, point.name, distribution(point), version, point.value, _status(kind, point), False, requires)


def _status(kind: str, point: EntryPoint) -> Status:
    if _bad_name(kind, point.name) is not None:
        return "bad name"
    if _is_reserved(kind, point.name) and not is_core(distribution(point)):
        return "reserved name"
    return "incompatible" if incompatibility(point.dist) is not None else "ok"


def _bad_name(kind: str, name: str) -> str | None:
    try:
        check_name(kind, name)
    except ValueError as error:
        return str(error)
    return None


def _is_reserved(kind: str, name: str) -> bool:
    return is_reserved(name, _ALSO_RESERVED.get(kind, frozenset()))


def check(
    builtins: Builtins,
    distributions: Sequence[str] = (),
    *,
    load: bool = False,
    resolve: Callable[[str, str], object] | None = None,
) -> list[Finding]:
    """Findings about installed extensions, errors first. `load` also imports each entry point, and looks it up by
    `resolve(kind, name)`, as a run would; that raises ValueError or ConfigError for what cannot be used."""
    wanted = {canonicalize_name(name) for name in distributions}
    by_dist: dict[str, list[tuple[str, EntryPoint]]] = defaultdict(list)
    for kind, group in [*GROUPS.items(), ("plugin", RETIRED_GROUP)]:
        for point in entry_points(group=group):
            if not is_core(distribution(point)) and (not wanted or canonicalize_name(distribution(point)) in wanted):
                by_dist[distribution(point)].append((kind, point))
    absent = sorted(wanted - {canonicalize_name(name) for name in by_dist})
    findings = [Finding("error", name, "no such extension is installed") for name in absent]
    for name in sorted(by_dist):
        findings += [
            Finding(severity, name, text) for severity, text in _findings(by_dist[name], builtins, load, resolve)
        ]
    return sorted(findings, key=lambda finding: finding.severity != "error")


def _findings(
    points: Sequence[tuple[str, EntryPoint]],
    builtins: Builtins,
    load: bool,
    resolve: Callable[[str, str], object] | None,
) -> Iterator[tuple[Literal["error", "warning"], str]]:
    dist = points[0][1].dist
    problem = incompatibility(dist)
    if problem is not None:
        yield "error", problem
    for kind, point in points:
        if kind == "plugin":
            yield "warning", f"{point.name!r} is in the group {RETIRED_GROUP}, which nothing reads any more"
            continue
        bad = _bad_name(kind, point.name)
        if bad is not None:
            yield "error", bad
        elif point.name in builtins.get(kind, {}):
            yield "warning", f"{kind} {point.name!r} is built into platoon, which is used instead"
        elif _is_reserved(kind, point.name):
            yield "error", f"{kind} name {point.name!r} is reserved for platoon itself; the entry point is not read"
        if load and problem is None:
            try:
                load_point(kind, point)
                if resolve is not None and installed(kind).get(point.name) == point and not bad:
                    resolve(kind, point.name)
            except (ValueError, ConfigError) as error:
                yield "error", str(error)
    owners = sorted({point.name.replace("_", "-").split("-")[0] for kind, point in points if kind != "plugin"})
    if len(owners) > 1:
        yield "warning", f"its names have several owners ({', '.join(owners)}); begin them with one word"
    yield from _requirement_findings(dist)


def _requirement_findings(dist: Distribution | None) -> Iterator[tuple[Literal["warning"], str]]:
    specifiers = [requirement.specifier for requirement in platoon_requirements(dist)]
    if not specifiers:
        yield "warning", f"it does not say which platoon it needs; write {suggested_requirement()}"
    elif not any(part.operator in _UPPER for specifier in specifiers for part in specifier):
        yield "warning", f"its requirement on platoon has no upper bound; write {suggested_requirement()}"


def suggested_requirement(version: str = platoon.__version__) -> str:
    """The requirement on platoon that an extension made for this version would name."""
    major, minor = (int(part) for part in version.split(".")[:2])
    upper = f"0.{minor + 1}" if major == 0 else f"{major + 1}"
    return f"platoon>={major}.{minor},<{upper}"
