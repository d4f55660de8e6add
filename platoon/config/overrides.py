"""Overrides: `key=value` texts of a command line, and mappings of a caller in Python.

A text is read by the type of the key it sets; a value of a mapping is used as it is and keeps its type. The two are
one list of `Override`s, applied in order; each failing one is a problem that quotes it.
"""

from __future__ import annotations

import copy
import enum
import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args, get_origin

import yaml

from platoon.config.base import Section, given
from platoon.config.problems import KeyPath, Problem, dotted, show
from platoon.config.reading import merge, read_text
from platoon.config.schema import at_path, below, members, section_of
from platoon.config.secrets import masked

_NULLS = ("null", "Null", "NULL", "none", "None", "~")
_TRUE, _FALSE = ("true", "yes", "on", "1"), ("false", "no", "off", "0")
_INTEGER = re.compile(r"[+-]?\d[\d_]*")


@dataclass(frozen=True)
class Override:
    """`key` names the value; `append` adds one item; `value` is text to be read by type when `text` is set."""

    key: str
    value: Any
    append: bool = False
    text: bool = False

    @property
    def path(self) -> tuple[str, ...]:
        return tuple(self.key.split("."))

    def __str__(self) -> str:
        shown = masked(self.path, self.value if self.text else show(self.value))
        return f"{self.key}{'+' if self.append else ''}={shown}"


def parse_overrides(written: Sequence[str] | Mapping[str, Any]) -> tuple[list[Override], list[Problem]]:
    """The overrides a caller wrote, and what of them is no override at all."""
    if isinstance(written, Mapping):
        pairs = [(str(key), value, False) for key, value in written.items()]
    else:
        pairs, problems = [], []
        for item in written:
            key, equals, value = item.partition("=")
            if equals:
                pairs.append((key, value, True))
            else:
                problems.append(Problem((), f"{item!r} is no override; write key=value or key+=item"))
        return _checked(pairs, problems)
    return _checked(pairs, [])


def _checked(pairs: list[tuple[str, Any, bool]], problems: list[Problem]) -> tuple[list[Override], list[Problem]]:
    overrides = []
    for name, value, text in pairs:
        key = name.removesuffix("+").strip()
        override = Override(key, value, name.endswith("+"), text)
        if all(part.strip() for part in override.path):
            overrides.append(override)
        else:
            problems.append(Problem((), f"override {override}: a part of the key is empty"))
    return overrides, problems


def apply_overrides(
    data: dict[str, Any], overrides: Sequence[Override], root: Any, places: dict[KeyPath, str]
) -> tuple[dict[str, Any], list[Problem]]:
    """A copy of `data` with the overrides applied in order, and a problem for each that fails. `places` learns where
    each new value comes from."""
    problems = []
    for override in overrides:
        trial = copy.deepcopy(data)
        try:
            path = _apply(trial, override, root)
        except ValueError as error:
            problems.append(Problem((), f"override {override}: {error}"))
            continue
        data = trial
        for old in [old for old in places if old[: len(path)] == path]:
            del places[old]
        places[path] = f"override {override}"
    return data, problems


def _apply(data: dict[str, Any], override: Override, root: Any) -> KeyPath:
    parts = override.path
    container, path = _container(data, parts[:-1], root)
    key: Any = _index(container, parts[-1], path) if isinstance(container, list) else parts[-1]
    path = (*path, key)
    annotation = at_path(root, path)
    current = container[key] if isinstance(container, list) else container.get(key)
    if override.append:
        value: Any = [*_list_at(current, annotation, path), _value(override, _item_type(annotation), path, root)]
    else:
        value = _value(override, annotation, path, root)
        if isinstance(value, dict) and isinstance(current, dict):
            value = merge(current, value)
    container[key] = value
    return path


def _container(data: dict[str, Any], parts: Sequence[str], root: Any) -> tuple[Any, KeyPath]:
    """The mapping or list that holds the last key, missing mappings made on the way."""
    current: Any = data
    path: KeyPath = ()
    for part in parts:
        if isinstance(current, list):
            index = _index(current, part, path)
            path, current = (*path, index), current[index]
        else:
            path = (*path, part)
            if current.get(part) is None:
                current[part] = _missing(root, path)
            current = current[part]
        if not isinstance(current, (dict, list)):
            raise ValueError(f"{dotted(path)} holds {show(current)}, not a section or a list")
    return current, path


def _missing(root: Any, path: KeyPath) -> dict[str, Any]:
    annotation = at_path(root, path)
    kinds = (Any,) if annotation is None else members(annotation)
    if any(get_origin(kind) in (list, tuple) for kind in kinds):
        raise ValueError(f"{dotted(path)} has no items in the file; append one with {dotted(path)}+=")
    if section_of(annotation) is None and not any(kind is Any or get_origin(kind) is dict for kind in kinds):
        named = any(get_origin(kind) is dict for kind in members(at_path(root, path[:-1])))
        hint = f"; set a name that has a dot by {dotted(path[:-1])}={{NAME: VALUE}}" if named else ""
        raise ValueError(f"{dotted(path)} is a single value, not a section{hint}")
    return {}


def _index(items: list[Any], part: str, path: KeyPath) -> int:
    if not re.fullmatch(r"-?\d+", part):
        raise ValueError(f"{dotted(path)} is a list of {len(items)}; {part!r} is no index")
    index = int(part)
    if not -len(items) <= index < len(items):
        raise ValueError(f"{dotted(path)} has {len(items)} items; there is no {part}")
    return index % len(items)


def _list_at(current: Any, annotation: Any, path: KeyPath) -> list[Any]:
    kinds = (Any,) if annotation is None else members(annotation)
    takes_list = any(kind is Any or get_origin(kind) in (list, tuple) for kind in kinds)
    if not takes_list:
        raise ValueError(f"{dotted(path)} is not a list; use = instead of +=")
    if current is None:
        return []
    if not isinstance(current, list):
        raise ValueError(f"{dotted(path)} holds {show(current)}, not a list")
    return current


def _item_type(annotation: Any) -> Any:
    return Any if annotation is None else below(annotation, 0) or Any


def _value(override: Override, annotation: Any, path: KeyPath, root: Any) -> Any:
    if not override.text:
        return _plain(override.value)
    owner = section_of(at_path(root, path[:-1]))
    hints = owner.VALUE_HINTS.get(str(path[-1]), {}) if owner is not None else {}
    if override.value in hints:
        raise ValueError(hints[override.value])
    return parse_text(override.value, annotation)


def _plain(value: Any) -> Any:
    """A copy as the plain data that a file could hold."""
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, Section):
        return _plain(given(value))
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if isinstance(value, Mapping) and all(isinstance(key, str) for key in value):
        return {key: _plain(item) for key, item in value.items()}
    raise ValueError(f"{type(value).__name__} is no plain value; give text, numbers, lists or mappings with text keys")


def parse_text(text: str, annotation: Any) -> Any:
    """The value a text means for a key of this type (None: unknown key, Any: free-form). Raises ValueError."""
    if len(text) >= 2 and text[0] == text[-1] == '"':
        try:
            return json.loads(text, strict=False)
        except ValueError:
            pass
    kinds = (Any,) if annotation is None else members(annotation)
    if type(None) in kinds and text in _NULLS:
        return None
    reasons = []
    for kind in sorted((kind for kind in kinds if kind is not type(None)), key=lambda kind: kind is str):
        try:
            return _parse_as(text, kind)
        except ValueError as error:
            reasons.append(str(error))
    raise ValueError("; ".join(reasons))


def _parse_as(text: str, kind: Any) -> Any:
    word = text.strip()
    if kind is str:
        return text
    if kind is bool:
        if word.lower() in _TRUE + _FALSE:
            return word.lower() in _TRUE
        raise ValueError(f"must be true or false; got {text!r}")
    if kind is int:
        if _INTEGER.fullmatch(word) and len(word) < 300:
            return int(word.replace("_", ""))
        raise ValueError(f"must be an integer; got {text!r}")
    if kind is float:
        return _number(word)
    if get_origin(kind) is Literal:
        for choice in get_args(kind):
            if str(choice) == text:
                return choice
        raise ValueError(f"must be one of {', '.join(map(str, get_args(kind)))}; got {text!r}")
    if isinstance(kind, type) and issubclass(kind, enum.Enum):
        for member in kind:
            if text in (str(member.value), member.name):
                return member.value
        raise ValueError(f"must be one of {', '.join(str(member.value) for member in kind)}; got {text!r}")
    if kind is Any:
        return _free_form(text)
    return _container_text(text, kind)


def _number(word: str) -> float:
    try:
        return float(word.replace("_", ""))
    except ValueError:
        raise ValueError(f"must be a number; got {word!r}") from None


def _container_text(text: str, kind: Any) -> Any:
    wanted: type = list if get_origin(kind) in (list, tuple) else dict
    try:
        value = read_text(text)
    except (yaml.YAMLError, ValueError):
        value = text
    shorthand = isinstance(kind, type) and issubclass(kind, Section) and isinstance(value, str)
    if isinstance(value, wanted) or (shorthand and value in ("grade", "exclude")):
        return value
    raise ValueError(f"must be a {'list' if wanted is list else 'mapping'}; got {text!r}")


def _free_form(text: str) -> Any:
    try:
        value = read_text(text)
    except (yaml.YAMLError, ValueError, RecursionError):
        return text
    if isinstance(value, str) and value == text and not re.search(r"inf|nan", text, re.IGNORECASE):
        try:
            return float(text)
        except ValueError:
            return text
    return value


def sections_named(overrides: Sequence[Override]) -> Iterator[str]:
    """The top-level key of each override."""
    for override in overrides:
        yield override.path[0]
