"""Reading the schema of the sections: which type stands at a path, and pydantic's errors in our words."""

from __future__ import annotations

import types
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from platoon.config.base import Section
from platoon.config.problems import KeyPath, Problem, show, unknown_key
from platoon.config.secrets import is_secret, without_secrets

_TYPES = {
    "int_type": "must be an integer",
    "float_type": "must be a number",
    "bool_type": "must be true or false",
    "string_type": "must be text",
    "dict_type": "must be a mapping",
    "mapping_type": "must be a mapping",
    "model_type": "must be a mapping",
    "model_attributes_type": "must be a mapping",
    "list_type": "must be a list",
    "tuple_type": "must be a list",
    "finite_number": "must be a finite number",
}
_BOUNDS = {
    "greater_than_equal": ("ge", "must be at least {}"),
    "greater_than": ("gt", "must be above {}"),
    "less_than_equal": ("le", "must be at most {}"),
    "less_than": ("lt", "must be below {}"),
}


def members(annotation: Any) -> tuple[Any, ...]:
    """The members of a union, each without `Annotated`; a type alone is its only member."""
    if get_origin(annotation) is Annotated:
        return members(get_args(annotation)[0])
    if get_origin(annotation) in (Union, types.UnionType):
        return tuple(member for part in get_args(annotation) for member in members(part))
    return (annotation,)


def section_of(annotation: Any) -> type[Section] | None:
    """The section class a field takes, or None."""
    for member in members(annotation):
        if isinstance(member, type) and issubclass(member, Section):
            return member
    return None


def below(annotation: Any, key: str | int) -> Any:
    """The type under `key`; Any where the schema leaves it open, None where there is no such key."""
    for member in members(annotation):
        if isinstance(member, type) and issubclass(member, Section):
            old = member.DEPRECATED.get(str(key))
            field = member.model_fields.get(old.renamed_to if old is not None and old.renamed_to else str(key))
            return None if field is None else field.annotation
        origin, args = get_origin(member), get_args(member)
        if origin is dict:
            return args[1]
        if origin in (list, tuple):
            return args[0]
        if member is Any:
            return Any
    return None


def at_path(root: Any, path: Sequence[str | int]) -> Any:
    """The type at a path below a section class; Any below a free-form mapping, None for an unknown key."""
    annotation = root
    for key in path:
        if annotation is None:
            return None
        annotation = below(annotation, key)
    return annotation


def problems_of(error: ValidationError, root: type[Section]) -> Iterator[Problem]:
    """Each pydantic error as a problem with the path below `root`."""
    for detail in error.errors(include_url=False):
        path = tuple(detail["loc"])
        if path and path[-1] == "[key]":
            path = path[:-1]
        nested = detail.get("ctx", {}).get("problems") if detail["type"] == "section" else None
        if nested is not None:
            yield from (problem.under(path) for problem in nested)
        else:
            yield Problem(path, _text(detail, path, root))


def _text(detail: ErrorDetails, path: KeyPath, root: type[Section]) -> str:
    kind, value = detail["type"], detail["input"]
    owner = section_of(at_path(root, path[:-1])) if path else None
    if kind == "extra_forbidden":
        return unknown_key(path, owner.model_fields if owner else (), owner.HINTS if owner else {})
    if kind == "missing":
        return "missing; it has no default"
    got = "" if is_secret(path) else f"; got {show(without_secrets(value))}"
    hint = value_hint(owner, path, value)
    if kind in _TYPES:
        return _TYPES[kind] + got + hint
    if kind in _BOUNDS:
        name, text = _BOUNDS[kind]
        return text.format(detail["ctx"][name]) + got + hint
    if kind == "literal_error":
        choices = [str(choice) for choice in literal_choices(at_path(root, path))]
        return f"must be one of {', '.join(choices)}{got}{hint}"
    if kind == "value_error":
        text = str(detail["ctx"]["error"])
        return text if "got" in text else text + got
    return detail["msg"] + got


def literal_choices(annotation: Any) -> tuple[Any, ...]:
    return tuple(
        choice for member in members(annotation) if get_origin(member) is Literal for choice in get_args(member)
    )


def value_hint(owner: type[Section] | None, path: KeyPath, value: Any) -> str:
    """What to write instead of a value that an earlier release took, or nothing."""
    hints: Mapping[str, str] = owner.VALUE_HINTS.get(str(path[-1]), {}) if owner is not None else {}
    return f"; {hints[value]}" if isinstance(value, str) and value in hints else ""
