"""Keys on their way out: they work for one minor release, with a warning, and are removed in the release they name.

A section declares them in `DEPRECATED`. A renamed key is moved to its new name before anything is checked; a key that
has no successor stays a field of its section until it is removed.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from platoon.config.base import Section
from platoon.config.problems import KeyPath, Problem, dotted, show
from platoon.config.schema import below, section_of


class PlatoonDeprecationWarning(FutureWarning):
    """Something a configuration or a call uses that a coming release removes."""


@dataclass(frozen=True)
class Deprecation:
    """A deprecated key that a configuration sets. `ignored`: its new name was given, too."""

    path: KeyPath
    replacement: str
    removed_in: str
    ignored: bool = False

    def __str__(self) -> str:
        ignored = ", and is ignored: the new key is set, too" if self.ignored else ""
        text = f"{dotted(self.path)} is deprecated{ignored}; use {self.replacement}"
        return f"{text} (platoon {self.removed_in} removes it)"

    def record(self) -> dict[str, str]:
        """What `lock.json` keeps."""
        return {"path": dotted(self.path), "replacement": self.replacement, "removed_in": self.removed_in}


def replace_deprecated(
    data: dict[str, Any], root: type[Section]
) -> tuple[dict[str, Any], list[Deprecation], list[Problem]]:
    """A copy of the data with renamed keys under their new names; what was deprecated; what contradicts itself."""
    data = copy.deepcopy(data)
    found: list[Deprecation] = []
    problems: list[Problem] = []
    for section, values, path in _sections(data, root, ()):
        for key, deprecated in section.DEPRECATED.items():
            if key not in values:
                continue
            new = deprecated.renamed_to
            if new is None:
                found.append(Deprecation((*path, key), deprecated.instead, deprecated.removed_in))
                continue
            old = values.pop(key)
            both = new in values and values[new] != old
            found.append(Deprecation((*path, key), dotted((*path, new)), deprecated.removed_in, ignored=both))
            if both and old != deprecated.former_default:
                text = f"contradicts {dotted((*path, new))}, which replaces it; remove this key (got {show(old)})"
                problems.append(Problem((*path, key), text, ((*path, new),)))
            values.setdefault(new, old)
    return data, found, problems


def without_unused(dump: dict[str, Any], root: type[Section]) -> dict[str, Any]:
    """A copy of a section's dump without the deprecated keys that are at their default: it loads without a warning."""
    dump = copy.deepcopy(dump)
    for section, values, _ in list(_sections(dump, root, ())):
        for key in section.DEPRECATED.keys() & section.model_fields.keys() & values.keys():
            if values[key] == section.model_fields[key].get_default(call_default_factory=True):
                del values[key]
    return dump


def _sections(value: Any, annotation: Any, path: KeyPath) -> Iterator[tuple[type[Section], dict[str, Any], KeyPath]]:
    """Every mapping of the data that a section class reads, outermost first."""
    section = section_of(annotation)
    if isinstance(value, dict):
        if section is not None:
            yield section, value, path
        items: Mapping[Any, Any] = value
    else:
        items = dict(enumerate(value)) if isinstance(value, list) else {}
    for key, item in items.items():
        if isinstance(item, dict | list):
            yield from _sections(item, below(annotation, key), (*path, key))
