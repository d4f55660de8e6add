"""Configurations that are no whole run: a file of entries, a schema of one's own, or plain data without one.

For `platoon config show | validate`, and for files that others extend.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from platoon.config.base import Section
from platoon.config.deprecations import Deprecation
from platoon.config.load import Draft, Resolver, build
from platoon.config.runs import Entries
from platoon.config.unbuilt import ENTRIES, unbuilt_problems

PartialKind = Literal["train", "eval", "environments", "none"]


class EnvironmentsOnly(Section):
    """A file of entries, for others to extend."""

    environments: Entries = ()


@dataclass(frozen=True)
class Partial:
    """Merged data and, under a schema, the section built from it."""

    path: Path
    data: dict[str, Any]
    config: Section | None
    sources: tuple[Path, ...]
    overrides: tuple[str, ...]
    deprecations: tuple[Deprecation, ...]


def kind_of(path: str | Path, overrides: Sequence[str] | Mapping[str, Any] = ()) -> PartialKind:
    """What a file is by its sections, with the overrides. Raises ConfigError when it cannot be read."""
    draft = Draft.read(path, overrides)
    if draft.kind is not None:
        return draft.kind
    return "environments" if set(draft.data) == {"environments"} else "none"


def load_partial(
    path: str | Path,
    overrides: Sequence[str] | Mapping[str, Any] = (),
    *,
    schema: type[Section] | None = None,
    resolver: Resolver | None = None,
) -> Partial:
    """Load a file under a schema, or as plain data, whose overrides are then read free-form. Raises ConfigError."""
    draft = Draft.read(path, overrides)
    draft.complete(Any if schema is None else schema, resolver, training=False)
    config: Section | None = None
    if schema is not None:
        config, failed = build(draft.data, schema)
        draft.refuse(failed)
        if schema is EnvironmentsOnly:
            draft.refuse(unbuilt_problems(draft.data, ENTRIES))
    if draft.problems:
        raise draft.report()
    overrides_given = tuple(map(str, draft.overrides))
    return Partial(draft.file, draft.data, config, draft.merged.sources, overrides_given, tuple(draft.deprecations))
