"""Loading a configuration: files, overrides, named environments, checks, all problems in one report.

`load` either returns a checked configuration or raises one `ConfigError` that names every problem of every file with
its dotted path and line. It imports no room of the package and no training library.
"""

from __future__ import annotations

import copy
import itertools
import os
import shlex
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol, TypeVar, runtime_checkable

from pydantic import ValidationError

from platoon.config.base import Section
from platoon.config.deprecations import Deprecation, replace_deprecated
from platoon.config.overrides import Override, apply_overrides, parse_overrides, sections_named
from platoon.config.paths import absolute, resolve_paths
from platoon.config.problems import ConfigError, KeyPath, Problem, placed
from platoon.config.reading import merge, merge_places, read_sources
from platoon.config.runs import EvalRun, TrainRun
from platoon.config.schema import problems_of
from platoon.config.site import Site, apply_site, read_site
from platoon.config.unbuilt import TABLES, unbuilt_problems

Kind = Literal["train", "eval"]
Root = TypeVar("Root", bound=Section)
_ROOTS: dict[Kind, type[TrainRun] | type[EvalRun]] = {"train": TrainRun, "eval": EvalRun}
_SECTIONS: dict[Kind, str] = {"train": "train", "eval": "inference"}
_PASSES = 12
RESOLVED = "config.resolved.yaml"
SOURCE_LINE = "# source: "


class Resolver(Protocol):
    """Expands an entry's `env:`; what it raises as ValueError becomes a problem of that entry."""

    def expand(self, entry: dict[str, Any]) -> dict[str, Any]: ...


@runtime_checkable
class ClassFinder(Protocol):
    """A resolver that also finds the config class which `trainer_config` names; ValueError when it is none."""

    def config_class(self, reference: str, packages: Sequence[str]) -> type: ...


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
    site: Site = field(default_factory=lambda: read_site()[0], repr=False)
    deprecations: tuple[Deprecation, ...] = ()

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
    draft = Draft.read(path, overrides)
    chosen = draft.kind if kind == "auto" else kind
    if chosen is None:
        text = "the file has neither a train section (training) nor an inference section (evaluation)"
        draft.problems.append(Problem((), text, place=str(draft.file)))
        raise draft.report()
    if draft.kind is not None and chosen != draft.kind and _SECTIONS[chosen] not in draft.data:
        raise ConfigError(_for_the_other_command(draft.file, draft.kind))
    root = _narrowed(_ROOTS[chosen], draft, resolver)
    draft.complete(root, resolver, training=chosen == "train")
    config, failed = build(draft.data, root)
    draft.refuse(failed)
    draft.refuse(unbuilt_problems(draft.data, TABLES[chosen]))
    if draft.problems or config is None:
        raise draft.report()
    return Loaded(
        chosen,
        draft.file,
        config,
        draft.data,
        draft.merged.sources,
        tuple(map(str, draft.overrides)),
        draft.merged.places,
        draft.site,
        tuple(draft.deprecations),
    )


@dataclass
class Draft:
    """A configuration on its way: merged data, and every problem found so far."""

    file: Path
    merged: MergedFiles
    overrides: list[Override]
    problems: list[Problem]
    data: dict[str, Any]
    site: Site
    deprecations: list[Deprecation] = field(default_factory=list)

    @classmethod
    def read(cls, path: str | Path, overrides: Sequence[str] | Mapping[str, Any] = ()) -> Draft:
        """Read the files and the site profile. Raises ConfigError when a file cannot be read at all."""
        file = Path(os.path.realpath(absolute(path, Path.cwd())))
        found, problems = parse_overrides(overrides)
        merged = merge_files(file)
        site, refused = read_site()
        draft = cls(file, merged, found, merged.problems + problems + refused, merged.data, site)
        if not merged.readable:
            raise draft.report()
        return draft

    @property
    def kind(self) -> Kind | None:
        """What the file and the overrides make of it; None when neither section is there."""
        return _kind(self.data, self.overrides)

    def complete(self, root: Any, resolver: Resolver | None, *, training: bool) -> None:
        """Apply overrides, deprecated names, named environments, paths and the site profile. `root`: the section
        class that types the overrides, or Any."""
        named = set(_trainer_configs(self.data).values())
        self.data, failed = apply_overrides(self.data, self.overrides, root, self.merged.places)
        self.problems += failed
        changed = {i: name for i, name in _trainer_configs(self.data).items() if name not in named}
        for index in changed:
            text = "an override cannot change the config class, which types the overrides; set it in a file"
            self.problems.append(Problem(("environments", index, "trainer_config"), text))
        if root is not Any:
            self.data, self.deprecations, failed = replace_deprecated(self.data, root)
            self.problems += failed
        own = _own_providers(self.data)
        self.data, failed = _expand(self.data, resolver)
        self.problems += failed
        self.data, _ = resolve_paths(self.data, Path.cwd(), must_exist=False)
        self.data, self.site = apply_site(self.data, self.site, self.file, training=training, own_providers=own)

    def refuse(self, problems: Iterable[Problem]) -> None:
        """Add problems that are not known yet."""
        for problem in problems:
            if not _repeats(problem, self.problems):
                self.problems.append(problem)

    def report(self) -> ConfigError:
        """All problems as the one error."""
        return _report(self.file, self.problems, self.merged.places)


def _for_the_other_command(file: Path, kind: Kind) -> str:
    what = "an evaluation" if kind == "eval" else "a training"
    command = shlex.join(["platoon", kind, str(file)])
    return f"{file} is {what} config (it has the section {_SECTIONS[kind]}); run it with: {command}"


def _narrowed(root: type[Root], draft: Draft, resolver: Resolver | None) -> type[Root]:
    """The config class that the files' entries name, where it extends the command's; else the command's."""
    named = _trainer_configs(draft.data)
    if not named or not isinstance(resolver, ClassFinder):
        return root
    index, reference = next(iter(named.items()))
    packages = [
        entry["package"]
        for entry in draft.data["environments"]
        if isinstance(entry, dict) and isinstance(entry.get("package"), str)
    ]
    try:
        found = resolver.config_class(reference, packages)
    except ValueError as error:
        draft.problems.append(Problem(("environments", index, "trainer_config"), str(error)))
        return root
    return found if issubclass(found, root) else root


def _trainer_configs(data: Mapping[str, Any]) -> dict[int, str]:
    """Index of an entry -> the config class that it names."""
    entries = data.get("environments")
    found = {}
    for index, entry in enumerate(entries if isinstance(entries, list) else ()):
        if isinstance(entry, dict) and isinstance(entry.get("trainer_config"), str):
            found[index] = entry["trainer_config"]
    return found


def _own_providers(data: Mapping[str, Any]) -> frozenset[int]:
    """The entries that name a sandbox provider themselves."""
    entries = data.get("environments")
    entries = entries if isinstance(entries, list) else []
    kwargs = [entry.get("service_kwargs") if isinstance(entry, dict) else None for entry in entries]
    return frozenset(i for i, one in enumerate(kwargs) if isinstance(one, dict) and one.get("provider") is not None)


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


def build(data: dict[str, Any], root: type[Root]) -> tuple[Root | None, list[Problem]]:
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
    return next((kind for kind in ("eval", "train") if _SECTIONS[kind] in named), None)


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
    file = where.path if isinstance(where, Loaded) else Path(os.path.realpath(absolute(where, Path.cwd())))
    for directory in dict.fromkeys(str(one.parent) for one in (file, *made_from(file))):
        if directory not in sys.path:
            sys.path.append(directory)


def made_from(file: Path) -> list[Path]:
    """The files that a resolved configuration was made from; [] for any other file."""
    if file.name != RESOLVED or not file.is_file():
        return []
    head = itertools.takewhile(lambda line: line.startswith("#"), file.read_text(encoding="utf-8").splitlines())
    return [Path(line.removeprefix(SOURCE_LINE)) for line in head if line.startswith(SOURCE_LINE)]
