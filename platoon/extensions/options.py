"""Options of a component, checked against what the component declares.

A schema is a dataclass, a pydantic model, a function that parses a mapping, or None: then no option is taken. Options
are plain data as a configuration holds it. A function's signature serves as a schema, too: `signature_problems`.
"""

from __future__ import annotations

import dataclasses
import inspect
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from pydantic import BaseModel, TypeAdapter, ValidationError

from platoon.config.problems import ConfigError, KeyPath, Problem, show, unknown_key
from platoon.extensions.boundary import Boundary

OptionSchema = type | Callable[[dict[str, Any]], Any] | None


def parse_options(schema: OptionSchema, options: Mapping[str, Any], owner: str) -> Any:
    """The options as the schema makes them: an instance, what the function gives, or None without a schema.

    `owner` names the component in messages, such as `the sampler pass_rate`. Raises ConfigError with every problem.
    """
    value, problems = _parsed(schema, options, owner)
    if problems:
        raise ConfigError([str(problem) for problem in problems])
    return value


def option_problems(schema: OptionSchema, options: Mapping[str, Any], owner: str) -> list[Problem]:
    """What `parse_options` would refuse; paths are relative to the options."""
    return _parsed(schema, options, owner)[1]


def option_record(schema: OptionSchema, options: Mapping[str, Any], owner: str) -> dict[str, Any]:
    """Plain data of the parsed options, defaults filled in: what a run's lock file keeps. Raises ConfigError."""
    value = parse_options(schema, options, owner)
    if dataclasses.is_dataclass(value) or isinstance(value, BaseModel):
        plain: dict[str, Any] = TypeAdapter(type(value)).dump_python(value, mode="json")
        return plain
    return dict(value) if isinstance(value, Mapping) else dict(options)


@dataclasses.dataclass(frozen=True)
class OptionRow:
    """One option as `show` commands print it."""

    name: str
    type: str
    default: Any = dataclasses.MISSING
    description: str = ""


def option_rows(schema: OptionSchema) -> list[OptionRow]:
    """The options of a schema in the order they are declared; none for a parsing function."""
    if isinstance(schema, type) and issubclass(schema, BaseModel):
        return [
            OptionRow(
                name,
                _type_name(info.annotation),
                dataclasses.MISSING if info.is_required() else info.get_default(call_default_factory=True),
                info.description or "",
            )
            for name, info in schema.model_fields.items()
        ]
    if isinstance(schema, type) and dataclasses.is_dataclass(schema):
        return [OptionRow(item.name, _type_name(item.type), _default(item)) for item in _options_of(schema)]
    return []


def _parsed(schema: OptionSchema, options: Mapping[str, Any], owner: str) -> tuple[Any, list[Problem]]:
    if schema is None:
        return None, [Problem((key,), f"{owner} takes no options; remove the key") for key in options]
    if isinstance(schema, type) and issubclass(schema, BaseModel):
        closed = schema.model_config.get("extra") != "allow"
        unknown = _unknown(options, schema.model_fields) if closed else []
        return _validated(TypeAdapter(schema), options, unknown, strict=None)
    if isinstance(schema, type) and dataclasses.is_dataclass(schema):
        return _validated(TypeAdapter(schema), options, _unknown(options, _names(schema)), strict=True)
    with Boundary("extension", quiet=True) as caught:
        return schema(dict(options)), []
    return None, [_raised((), _reason(caught.error), options)]


def _validated(
    adapter: TypeAdapter[Any], options: Mapping[str, Any], problems: list[Problem], *, strict: bool | None
) -> tuple[Any, list[Problem]]:
    known = {key: value for key, value in options.items() if not any(problem.path == (key,) for problem in problems)}
    value = None
    with Boundary("extension", quiet=True) as caught:
        # as JSON: a list stands for a tuple, a mapping for a nested record, and still no text for a number
        value = adapter.validate_json(json.dumps(known), strict=strict)
    if isinstance(caught.error, ValidationError):
        problems = [*problems, *_refused(caught.error, known)]
    elif caught.error is not None:
        problems = [*problems, Problem((), _reason(caught.error))]
    return value, problems


def _refused(error: ValidationError, options: Mapping[str, Any]) -> Iterator[Problem]:
    for item in error.errors(include_url=False):
        path: KeyPath = tuple(item["loc"])
        if item["type"] == "missing":
            yield Problem(path, "missing; it has no default")
        elif item["type"] in ("extra_forbidden", "unexpected_keyword_argument"):
            yield Problem(path, "unknown key")
        elif item["type"] in ("value_error", "assertion_error"):
            yield _raised(path, str((item.get("ctx") or {}).get("error", item["msg"])), options)
        else:
            yield Problem(path, f"{item['msg'][:1].lower()}{item['msg'][1:]}; got {show(item['input'])}")


def _raised(path: KeyPath, text: str, options: Mapping[str, Any]) -> Problem:
    """What a component said of its options; `field: message` is a problem of that field."""
    field, colon, message = text.partition(":")
    if colon and field.strip() in options:
        return Problem((*path, field.strip()), message.strip())
    return Problem(path, text)


def _unknown(options: Mapping[str, Any], names: Iterable[str]) -> list[Problem]:
    known = list(names)
    return [Problem((key,), unknown_key((key,), known, {})) for key in options if key not in known]


def _names(schema: Any) -> list[str]:
    return [item.name for item in _options_of(schema)]


def _options_of(schema: Any) -> list[Any]:
    return [item for item in dataclasses.fields(schema) if item.init]


def _default(item: Any) -> Any:
    return item.default if item.default_factory is dataclasses.MISSING else item.default_factory()


def _type_name(annotation: Any) -> str:
    if annotation is None:
        return "anything"
    return annotation if isinstance(annotation, str) else getattr(annotation, "__name__", None) or str(annotation)


def _reason(error: BaseException | None) -> str:
    if isinstance(error, ValueError | TypeError) and str(error):
        return str(error)
    return f"{type(error).__name__}: {error}"


def signature_problems(
    function: Callable[..., Any], given: Mapping[str, Any], *, by_reference: Mapping[str, str] | None = None
) -> list[Problem]:
    """What keyword arguments a function refuses, found without calling it.

    `by_reference`: name of a parameter that the reference itself fills -> what to say of it. `UNKNOWN_KEY_HINTS` of
    the function says what to write instead of a name it does not have. `**kwargs` takes anything.
    """
    filled = dict(by_reference or {})
    problems = [Problem((key,), filled[key]) for key in given if key in filled]
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return problems  # a function in C tells nothing about its parameters
    named = {p.name: p for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)}
    named = {name: p for name, p in named.items() if name not in filled}
    if not any(p.kind is p.VAR_KEYWORD for p in parameters):
        hints: Mapping[str, str] = getattr(function, "UNKNOWN_KEY_HINTS", {})
        extra = [key for key in given if key not in named and key not in filled]
        problems += [Problem((key,), unknown_key((key,), named, hints)) for key in extra]
    missing = [name for name, p in named.items() if p.default is p.empty and name not in given]
    return problems + [Problem((name,), "required, and missing") for name in missing]
