"""Where a component's code comes from: which distribution, which version, which entry point.

A module belongs to platoon, to the distribution of an entry point that was loaded from its package, to the only
distribution that installs its top-level package, or to the editable install whose directory holds its file.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.metadata import Distribution, PackageNotFoundError, distributions, packages_distributions
from importlib.metadata import distribution as distribution_named
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import platoon
from platoon.extensions.entry_points import loaded_points, platoon_requirements


@dataclass(frozen=True)
class Provenance:
    """`distribution` is None for code that no distribution brings, such as a project's own module."""

    distribution: str | None = None
    version: str | None = None
    entry_point: str | None = None


def provenance(module: str) -> Provenance:
    """Where a module comes from; nothing is imported."""
    top = module.partition(".")[0]
    if top == "platoon":
        return Provenance("platoon", platoon.__version__)
    for loaded, dist, name in loaded_points():
        if loaded == module or loaded.rpartition(".")[0] == module.rpartition(".")[0] != "":
            return Provenance(dist, _version(dist), name)
    owners = set(_installs().get(top, ()))
    found = owners.pop() if len(owners) == 1 else _editable(module)
    return Provenance(found, _version(found)) if found is not None else Provenance()


def distribution_records(names: set[str]) -> dict[str, dict[str, Any]]:
    """What a lock file keeps of distributions: version, requirements on platoon, where they were installed from."""
    records = {}
    for name in sorted(names):
        try:
            dist = distribution_named(name)
        except PackageNotFoundError:
            continue
        requires = [str(requirement) for requirement in platoon_requirements(dist)]
        records[name] = {"version": dist.version, "requires": requires, "direct_url": _direct_url(dist)}
    return records


def _version(name: str) -> str | None:
    try:
        return distribution_named(name).version
    except PackageNotFoundError:
        return None


@cache
def _installs() -> Mapping[str, list[str]]:
    return packages_distributions()


def _editable(module: str) -> str | None:
    file = getattr(sys.modules.get(module), "__file__", None)
    if file is None:
        return None
    return next((name for name, root in _editable_roots() if Path(file).is_relative_to(root)), None)


def _editable_roots() -> Iterator[tuple[str, Path]]:
    for dist in distributions():
        info = _direct_url(dist) or {}
        url = urlsplit(str(info.get("url", "")))
        editable = (info.get("dir_info") or {}).get("editable") and url.scheme == "file"
        if editable and dist.name != "platoon":  # platoon's own modules are named so; a checkout holds others, too
            yield dist.name, Path(unquote(url.path))


def _direct_url(dist: Distribution) -> dict[str, Any] | None:
    text = dist.read_text("direct_url.json")
    try:
        info = json.loads(text) if text else None
    except ValueError:
        return None
    return info if isinstance(info, dict) else None
