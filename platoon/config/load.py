"""Loading a configuration: files, overrides, named environments, checks, all problems in one report.

`load` either returns a checked configuration or raises one `ConfigError` that names every problem of every file with
its dotted path and line. It imports no room of the package and no training library.
"""

from __future__ import annotations

import copy
import itertools
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol

from pydantic import ValidationError

from platoon.config.base import Section
from platoon.config.overrides import Override, apply_overrides, parse_overrides, sections_named
from platoon.config.paths import resolve_paths
from platoon.config.problems import ConfigError, KeyPath, Problem, placed
from platoon.config.reading import merge, merge_places, read_sources
from platoon.config.runs import EvalRun, TrainRun
from platoon.config.schema import problems_of
from platoon.config.unbuilt import TABLES, unbuilt_problems

Kind = Literal["train", "eval"]
_ROOTS: dict[Kind, type[TrainRun] | type[EvalRun]] = {"train": TrainRun, "eval": EvalRun}
_PASSES = 12
RESOLVED = "config.resolved.yaml"
SOURCE_LINE = "# source: "


class Resolver(Protocol):
    """Expands an entry's `env:`; what it raises as ValueError becomes a problem of that entry."""

    def expand(self, entry: dict[str, Any]) -> dict[str, Any]: ...


@dataclass(frozen=True)
class Loaded:
    """A checked configuration. `data`: the merged plain data it was built from; `sources`: its files, bases first;
    `overrides`: as given, secrets masked; `places`: dotted path -> where the value comes from."""

    kind: Kind
    path: Path
    config: TrainRun | EvalRun
    data: dict[str, Any]
    sources: tuple[Path, ...]
    overrides: tuple[str, ...]
    places: Mapping[KeyPath, str] = field(default_factory=dict, repr=False)

    @property
    def train_config(self) -> TrainRun:
        """The training config. Raises ConfigError when the file is an evaluation."""
        if isinstance(self.config, TrainRun):
            return self.config
        raise ConfigError(f"{self.path} is an evaluation config; a training config has a train section")

    @property
    def eval_config(self) -> EvalRun:
        """The evaluation config. Raises ConfigError when the file is a training run."""
        if isinstance(self.config, EvalRun):
            return self.config
        raise ConfigError(f"{self.path} is a training config; an evaluation config has an inference section")


def load(
    path: str | Path,
    overrides: Sequence[str] | Mapping[str, Any] = (),
    *,
    kind: Literal["auto", "train", "eval"] = "auto",
    resolver: Resolver | None = None,
) -> Loaded:
    """Load and check a file. `overrides`: texts `key=value` read by the key's type, or a mapping whose values keep
    theirs. Raises ConfigError."""
    file = Path(path).expanduser().resolve()
    found, problems = parse_overrides(overrides)
    merged = merge_files(file)
    problems = merged.problems + problems
    data, places = merged.data, merged.places
    if not merged.readable:
        raise _report(file, problems, places)
    chosen = _kind(data, found) if kind == "auto" else kind
    if chosen is None:
        text = "the file has neither a train section (training) nor an inference section (evaluation)"
        raise _report(file, [*problems, Problem((), text, place=str(file))], places)
    root = _ROOTS[chosen]
    data, failed = apply_overrides(data, found, root, places)
    problems += failed
    data, failed = _expand(data, resolver)
    problems += failed
    data, _ = resolve_paths(data, Path.cwd(), must_exist=False)
    config, failed = build(data, root)
    failed += unbuilt_problems(data, TABLES[chosen])
    for problem in failed:
        if not _repeats(problem, problems):
            problems.append(problem)
    if problems or config is None:
        raise _report(file, problems, places)
    return Loaded(chosen, file, config, data, merged.sources, tuple(map(str, found)), places)


@dataclass(frozen=True)
class MergedFiles:
    """The data of a file over its bases, before overrides. `readable` is false when a file could not be read."""

    data: dict[str, Any]
    places: dict[KeyPath, str]
    sources: tuple[Path, ...]
    problems: list[Problem]
    readable: bool


def merge_files(file: Path) -> MergedFiles:
    """Read a file and its bases, resolve the paths that each names, and merge them."""
    sources = read_sources(file)
    data: dict[str, Any] = {}
    places: dict[KeyPath, str] = {}
    problems = list(sources.problems)
    for document in sources.documents:
        document.data, missing = resolve_paths(document.data, document.path.parent, must_exist=True)
        problems += placed(missing, document.places)
        data = merge(data, document.data)
        places = merge_places(places, document)
    files = tuple(document.path for document in sources.documents)
    return MergedFiles(data, places, files, problems, sources.readable)


def build(
    data: dict[str, Any], root: type[TrainRun] | type[EvalRun]
) -> tuple[TrainRun | EvalRun | None, list[Problem]]:
    """The checked config, or None with every problem. What one pass refuses is left out of the next, so that a wrong
    type does not hide a broken rule; a rule about a value left out is not reported."""
    problems: list[Problem] = []
    dropped: list[KeyPath] = []
    trial = data
    for _ in range(_PASSES):
        try:
            config = root.model_validate(trial)
        except ValidationError as error:
            found = list(problems_of(error, root))
        else:
            return (config if not problems else None), problems
        fresh = [problem for problem in found if not problem.touches(dropped) and not _repeats(problem, problems)]
        problems += fresh
        dropped += [problem.path for problem in found]
        before, trial = trial, copy.deepcopy(trial)
        for problem in found:
            _leave_out(trial, problem, root)
        if trial == before:
            break
    return None, problems


def _leave_out(data: dict[str, Any], problem: Problem, root: type[Section]) -> None:
    """Remove the refused value; a missing required text gets a stand-in, so that the rest is still checked."""
    container: Any = data
    for key in problem.path[:-1]:
        try:
            container = container[key]
        except (KeyError, IndexError, TypeError):
            return
    if not problem.path:
        return
    key = problem.path[-1]
    if problem.text.startswith("missing;") and isinstance(container, dict):
        sections = key in ("train", "inference")
        container[key] = {"model_name": "-", "renderer_name": "-"} if sections else "-"
    elif isinstance(container, dict):
        container.pop(key, None)
        if key in ("model_name", "renderer_name", "train", "inference", "base_url", "timeout_seconds"):
            _leave_out(data, Problem(problem.path, "missing;"), root)
    elif isinstance(container, list) and isinstance(key, int) and key < len(container):
        container[key] = {}


def _repeats(problem: Problem, problems: list[Problem]) -> bool:
    return any(problem.path == other.path and problem.text == other.text for other in problems)


def _kind(data: Mapping[str, Any], overrides: Sequence[Override]) -> Kind | None:
    named = {*data, *sections_named(overrides)}
    if "inference" in named:
        return "eval"
    return "train" if "train" in named else None


def _expand(data: dict[str, Any], resolver: Resolver | None) -> tuple[dict[str, Any], list[Problem]]:
    entries = data.get("environments")
    if resolver is None or not isinstance(entries, list):
        return data, []
    problems, expanded = [], []
    for index, entry in enumerate(entries):
        if isinstance(entry, dict) and isinstance(entry.get("env"), str):
            try:
                entry = resolver.expand(copy.deepcopy(entry))
            except ValueError as error:
                problems.append(Problem(("environments", index, "env"), str(error)))
        expanded.append(entry)
    return {**data, "environments": expanded}, problems


def _report(file: Path, problems: Sequence[Problem], places: Mapping[KeyPath, str]) -> ConfigError:
    lines = list(dict.fromkeys(str(problem) for problem in placed(problems, places)))
    count = "1 problem" if len(lines) == 1 else f"{len(lines)} problems"
    return ConfigError(lines, f"configuration {file}: {count}")


def add_project_path(where: Loaded | Path) -> None:
    """Let the config file's directory be imported from, after everything installed. For a resolved configuration
    also the directories of the files it was made from, so that it runs from where it lies."""
    file = where.path if isinstance(where, Loaded) else where.expanduser().resolve()
    for directory in dict.fromkeys(str(one.parent) for one in (file, *_made_from(file))):
        if directory not in sys.path:
            sys.path.append(directory)


def _made_from(file: Path) -> list[Path]:
    if file.name != RESOLVED or not file.is_file():
        return []
    head = itertools.takewhile(lambda line: line.startswith("#"), file.read_text(encoding="utf-8").splitlines())
    return [Path(line.removeprefix(SOURCE_LINE)) for line in head if line.startswith(SOURCE_LINE)]
