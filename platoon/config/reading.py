"""Reading configuration files: YAML with the line of every value, and the files it `extends`.

Duplicate keys and keys that are not text are problems. Dates stay text. All files are read before anything is
reported. Nothing is checked against a schema here.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from platoon.config.paths import absolute
from platoon.config.problems import KeyPath, Problem, show

_MERGE = "tag:yaml.org,2002:merge"
_PLAIN_TAGS = ("tag:yaml.org,2002:map", "tag:yaml.org,2002:seq")


class _Loader(yaml.SafeLoader):
    """YAML 1.1 without its dates, which a configuration never means."""


_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in rows if not tag.endswith(":timestamp")]
    for first, rows in yaml.SafeLoader.yaml_implicit_resolvers.items()
}


@dataclass
class Document:
    """One file's data with the place (`file:line`) of each path; `fatal` when it could not be read at all."""

    path: Path
    data: dict[str, Any] = field(default_factory=dict)
    places: dict[KeyPath, str] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)
    fatal: bool = False

    def refuse(self, path: KeyPath, text: str, line: int | None = None, *, fatal: bool = False) -> None:
        place = f"{self.path}:{line}" if line is not None else str(self.path)
        self.problems.append(Problem(path, text, place=place))
        self.fatal = self.fatal or fatal


def read_text(text: str) -> Any:
    """The value a YAML text spells, dates as text. Raises yaml.YAMLError or ValueError."""
    return yaml.load(text, _Loader)


def read_document(path: Path) -> Document:
    """Read one file. What is wrong with it is in `problems`; nothing is raised."""
    document = Document(path)
    try:
        loader = _Loader(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        document.refuse((), f"cannot be read: {reason}", fatal=True)
        return document
    except yaml.YAMLError as error:
        document.refuse((), f"is not YAML: {_one_line(error)}", _line(error), fatal=True)
        return document
    try:
        root = loader.get_single_node()
        value = {} if root is None else _Reader(loader, document).value(root, (), ())
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        document.refuse((), f"is not YAML: {_one_line(error)}", _line(error), fatal=True)
        return document
    finally:
        loader.dispose()
    if value is None:
        value = {}
    if not isinstance(value, dict):
        document.refuse((), f"the file must hold a mapping; got {show(value)}", 1, fatal=True)
        return document
    document.data = value
    return document


def _line(error: Exception) -> int | None:
    mark = getattr(error, "problem_mark", None) or getattr(error, "context_mark", None)
    return None if mark is None else mark.line + 1


def _one_line(error: Exception) -> str:
    return str(getattr(error, "problem", None) or error).replace("\n", " ") or type(error).__name__


class _Reader:
    """Turns nodes into plain data, noting the line of each path."""

    def __init__(self, loader: _Loader, document: Document) -> None:
        self.loader = loader
        self.document = document

    def value(self, node: yaml.Node, path: KeyPath, above: tuple[yaml.Node, ...]) -> Any:
        line = node.start_mark.line + 1
        if path:
            self.document.places.setdefault(path, f"{self.document.path}:{line}")
        if any(node is parent for parent in above):
            self.document.refuse(path, "an alias of a section inside itself", line)
            return None
        if isinstance(node, yaml.ScalarNode):
            return self.loader.construct_object(node)
        if node.tag not in _PLAIN_TAGS:
            self.document.refuse(path, f"the YAML tag {node.tag} is not read; write a plain mapping or list", line)
            return None
        if isinstance(node, yaml.SequenceNode):
            return [self.value(item, (*path, index), (*above, node)) for index, item in enumerate(node.value)]
        assert isinstance(node, yaml.MappingNode)
        return self._mapping(node, path, (*above, node))

    def _mapping(self, node: yaml.MappingNode, path: KeyPath, above: tuple[yaml.Node, ...]) -> dict[str, Any]:
        self._refuse_duplicates(node, path)
        if any(key.tag == _MERGE for key, _ in node.value):
            self.loader.flatten_mapping(node)
        data: dict[str, Any] = {}
        for key_node, value_node in node.value:
            key = self._key(key_node)
            if not isinstance(key, str):
                text = f"the key {show(key)} is not text; quote it"
                self.document.refuse(path, text, key_node.start_mark.line + 1)
                continue
            below = (*path, key)
            self.document.places[below] = f"{self.document.path}:{key_node.start_mark.line + 1}"
            data[key] = self.value(value_node, below, above)
        return data

    def _key(self, node: yaml.Node) -> Any:
        return self.loader.construct_object(node) if isinstance(node, yaml.ScalarNode) else node.tag

    def _refuse_duplicates(self, node: yaml.MappingNode, path: KeyPath) -> None:
        first: dict[str, int] = {}
        for key_node, _ in node.value:
            key = None if key_node.tag == _MERGE else self._key(key_node)
            line = key_node.start_mark.line + 1
            if not isinstance(key, str):
                continue
            if key in first:
                self.document.refuse((*path, key), f"is already set in line {first[key]}; keep one", line)
            first.setdefault(key, line)


@dataclass
class Sources:
    """The documents of a run, bases first, and what is wrong with them."""

    documents: list[Document]
    problems: list[Problem]

    @property
    def readable(self) -> bool:
        return not any(document.fatal for document in self.documents)


def read_sources(path: Path) -> Sources:
    """Read a file and everything it extends, each file once, deepest base first."""
    sources = Sources([], [])
    _collect(path, (), sources)
    for document in sources.documents:
        sources.problems.extend(document.problems)
    return sources


def _collect(path: Path, chain: tuple[Path, ...], sources: Sources) -> None:
    if any(document.path == path for document in sources.documents):
        return
    document = read_document(path)
    bases, chain = document.data.pop("extends", []), (*chain, path)
    place = document.places.get(("extends",), "")
    line = int(place.rpartition(":")[2]) if place else None
    if isinstance(bases, str):
        bases = [bases]
    if not isinstance(bases, list) or not all(
        isinstance(base, str) and base.strip() and "\0" not in base for base in bases
    ):
        document.refuse(("extends",), f"must be a path or a list of paths; got {show(bases)}", line, fatal=True)
        bases = []
    for base in bases:
        target = Path(os.path.realpath(absolute(base, path.parent)))
        if target in chain:
            circle = " -> ".join(str(item) for item in (*chain[chain.index(target) :], target))
            document.refuse(("extends",), f"the files extend each other in a circle: {circle}", line, fatal=True)
        elif not os.path.isfile(target):
            document.refuse(("extends",), f"no such file: {target}", line, fatal=True)
        else:
            _collect(target, chain, sources)
    sources.documents.append(document)


def merge(below: dict[str, Any], over: dict[str, Any]) -> dict[str, Any]:
    """A new mapping with `over` laid over `below`: mappings merge key by key, anything else replaces."""
    merged = dict(below)
    for key, value in over.items():
        old = merged.get(key)
        merged[key] = merge(old, value) if isinstance(old, dict) and isinstance(value, dict) else value
    return merged


def merge_places(below: dict[KeyPath, str], document: Document) -> dict[KeyPath, str]:
    """The places after a document is laid over: what it replaces as a whole loses its old places."""
    replaced = {path for path, _ in document.places.items() if not isinstance(_at(document.data, path), dict)}
    kept = {
        path: place
        for path, place in below.items()
        if not any(path[:length] in replaced for length in range(1, len(path) + 1))
    }
    return {**kept, **document.places}


def _at(data: Any, path: KeyPath) -> Any:
    for key in path:
        try:
            data = data[key]
        except (KeyError, IndexError, TypeError):
            return None
    return data
