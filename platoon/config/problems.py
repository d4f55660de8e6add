"""Problems of a configuration, and the one error that carries them.

A problem knows the dotted path it is about, so that the loader can name the file and line. `ConfigError` is what every
command reports with exit code 78. Nothing here reads a file.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

KeyPath = tuple[str | int, ...]


@dataclass(frozen=True)
class Problem:
    """One refused value. `also` names further paths that the text speaks about; `place` is file:line once known."""

    path: KeyPath
    text: str
    also: tuple[KeyPath, ...] = ()
    place: str | None = None

    def __str__(self) -> str:
        where = f"{dotted(self.path)}: " if self.path else ""
        return f"{where}{self.text}" + (f" ({self.place})" if self.place else "")

    def under(self, prefix: KeyPath) -> Problem:
        """The same problem, its paths taken relative to `prefix`."""
        return Problem(prefix + self.path, self.text, tuple(prefix + path for path in self.also), self.place)

    def touches(self, paths: Iterable[KeyPath]) -> bool:
        """Whether one of the paths it speaks about contains or is contained in one of `paths`."""
        mine = (self.path, *self.also)
        return any(own[: len(other)] == other or other[: len(own)] == own for other in paths for own in mine)


class ConfigError(Exception):
    """Bad configuration: never worth a restart, exit code 78. `str(error)` is the whole report."""

    def __init__(self, problems: Sequence[str] | str, heading: str | None = None) -> None:
        self.problems: list[str] = [problems] if isinstance(problems, str) else list(problems)
        self.heading = heading
        super().__init__(self.problems, heading)

    def __str__(self) -> str:
        if self.heading is None:
            return "\n".join(self.problems)
        return "\n".join([self.heading, *(f"  {line}" for text in self.problems for line in text.split("\n"))])


def dotted(path: KeyPath) -> str:
    return ".".join(str(part) for part in path)


def show(value: Any) -> str:
    """A value as a report quotes it: JSON where it has a form, at most 80 characters."""
    try:
        text = json.dumps(value, ensure_ascii=False)
    except (TypeError, ValueError, RecursionError):
        text = f"a value of type {type(value).__name__}"
    return text if len(text) <= 80 else text[:77] + "..."


def nearest(name: str, names: Iterable[str]) -> str | None:
    """The known name closest to a misspelt one (difflib ratio of at least 0.6), or None."""
    found = difflib.get_close_matches(name, list(names), n=1, cutoff=0.6)
    return found[0] if found else None


def unknown_key(path: KeyPath, names: Iterable[str], hints: Mapping[str, str]) -> str:
    """What to say of a key that its section does not have."""
    names = list(names)
    key = str(path[-1])
    if key in hints:
        return f"unknown key; {hints[key]}"
    close = nearest(key, names)
    if close is not None:
        return f"unknown key; did you mean {dotted((*path[:-1], close))}?"
    return f"unknown key; this section takes {', '.join(sorted(names)) or 'no keys'}"


def placed(problems: Iterable[Problem], places: Mapping[KeyPath, str]) -> Iterator[Problem]:
    """Each problem with the place of its path, or of the nearest section above it that a file wrote."""
    for problem in problems:
        place = problem.place
        for length in range(len(problem.path), 0, -1):
            if place is not None:
                break
            place = places.get(problem.path[:length])
        yield Problem(problem.path, problem.text, problem.also, place)
