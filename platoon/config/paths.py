"""Values that name files: a relative one means relative to the file that names it.

Known are harness specs (`*.toml`) and the path options of the built-in services. A path that does not exist is a
problem, unless the run itself may write it. Values with a scheme, absolute and empty ones are left alone.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from platoon.config.problems import KeyPath, Problem


@dataclass(frozen=True)
class PathRule:
    """An option that names files. `relative_to`: left as written when that option is set; `written`: may not exist."""

    key: str
    relative_to: str | None = None
    written: bool = False


_RULES: Mapping[str, tuple[PathRule, ...]] = {
    "table": (PathRule("path"),),
    "harbor": (
        PathRule("dataset"),
        PathRule("dataset_dir"),
        PathRule("task_dirs"),
        PathRule("splits", relative_to="dataset_dir"),
        PathRule("lock", written=True),
        PathRule("tasks"),
        PathRule("overlays"),
        PathRule("mounts[].source"),
    ),
}
Resolve = Callable[[str, KeyPath, bool], str]


def absolute(path: str | Path, base: Path) -> Path:
    """A path below `base` with `~` and `..` worked out. Touches no disk and refuses nothing: what names no file, or an
    unknown user, is found missing when it is looked for."""
    return Path(os.path.normpath(base / os.path.expanduser(path)))


def resolve_paths(data: dict[str, Any], base: Path, *, must_exist: bool) -> tuple[dict[str, Any], list[Problem]]:
    """A copy of `data` whose relative path values are absolute below `base`, and those that name nothing."""
    problems: list[Problem] = []

    def resolve(value: str, path: KeyPath, written: bool) -> str:
        if not _is_relative(value):
            return value
        target = absolute(value, base)
        if must_exist and not written and not os.path.exists(target):
            problems.append(Problem(path, f"no such file or directory: {target}"))
        return str(target)

    entries = data.get("environments")
    if not isinstance(entries, list):
        return data, problems
    resolved = [
        _entry(entry, ("environments", index), resolve) if isinstance(entry, dict) else entry
        for index, entry in enumerate(entries)
    ]
    return {**data, "environments": resolved}, problems


def _is_relative(value: str) -> bool:
    return bool(value) and not os.path.isabs(value) and not re.match(r"[a-z][a-z0-9+.-]*://|git\+", value)


def _entry(entry: dict[str, Any], at: KeyPath, resolve: Resolve) -> dict[str, Any]:
    entry = dict(entry)
    harness = entry.get("harness")
    if isinstance(harness, str) and harness.endswith(".toml"):
        entry["harness"] = resolve(harness, (*at, "harness"), False)
    elif isinstance(harness, dict):
        entry["harness"] = {
            resolve(name, (*at, "harness", name), False)
            if isinstance(name, str) and name.endswith(".toml")
            else name: weight
            for name, weight in harness.items()
        }
    service, kwargs = entry.get("service"), entry.get("service_kwargs")
    if isinstance(service, str) and isinstance(kwargs, dict):
        for rule in _RULES.get(service, ()):
            if rule.relative_to is None or not kwargs.get(rule.relative_to):
                kwargs = _option(kwargs, rule, (*at, "service_kwargs"), resolve)
        entry["service_kwargs"] = kwargs
    return entry


def _option(kwargs: dict[str, Any], rule: PathRule, at: KeyPath, resolve: Resolve) -> dict[str, Any]:
    name, _, inner = rule.key.partition("[].")
    value = kwargs.get(name)
    if isinstance(value, str) and not inner:
        return {**kwargs, name: resolve(value, (*at, name), rule.written)}
    if isinstance(value, list):
        return {**kwargs, name: list(_items(value, inner, rule, (*at, name), resolve))}
    return kwargs


def _items(values: list[Any], inner: str, rule: PathRule, at: KeyPath, resolve: Resolve) -> Iterator[Any]:
    for index, item in enumerate(values):
        if inner and isinstance(item, dict) and isinstance(item.get(inner), str):
            yield {**item, inner: resolve(item[inner], (*at, index, inner), rule.written)}
        elif not inner and isinstance(item, str):
            yield resolve(item, (*at, index), rule.written)
        else:
            yield item
