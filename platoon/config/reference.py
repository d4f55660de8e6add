"""The reference page of the configuration, made from the models: `python -m platoon.config.reference FILE`."""

from __future__ import annotations

import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic.fields import FieldInfo

from platoon.config.base import Section
from platoon.config.meanings import SECTIONS
from platoon.config.problems import show
from platoon.config.rollout import EVALUATION_DEFAULTS, WorkflowConfig, WorkflowLayer
from platoon.config.runs import EvalRun, TrainRun
from platoon.config.schema import section_of
from platoon.config.unbuilt import ENTRIES as ENTRY_ROWS
from platoon.config.unbuilt import EVAL, TRAIN, Unbuilt

_HEAD = """# Configuration

<!-- Made by `python -m platoon.config.reference docs/reference/config.md`. Do not edit. -->

A configuration is a YAML file with a `train` section (a training run) or an `inference` section (an evaluation).
`extends: base.yaml` (or a list) lays a file over others. `platoon config show FILE` prints what a file means,
`platoon config validate FILE` checks it, and `key=value` arguments override values: `train.batch_size=8`,
`environments.0.seed=3`, `environments.0.exclude_tasks+=t1`.

An unknown key is an error. So is a key marked *not built yet* when it is set to another value than its default.
"""


def reference() -> str:
    """The page as Markdown."""
    done: set[type[Section]] = set()
    lines = [_HEAD, "## A training run\n", *_section(TrainRun, "", done, {})]
    lines += ["## An evaluation\n", *_section(EvalRun, "", done, {})]
    return "\n".join(lines)


def _section(section: type[Section], path: str, done: set[type[Section]], defaults: dict[str, Any]) -> Iterator[str]:
    """The table of a section, then its sections, depth first; a class that was shown is only referred to."""
    done.add(section)
    if path:
        yield f"### `{path}`\n"
    yield " ".join((section.__doc__ or "").split()) + "\n"
    yield "| Key | Type | Default | Meaning |"
    yield "|---|---|---|---|"
    below: list[tuple[str, type[Section]]] = []
    for key, field in section.model_fields.items():
        nested = section_of(field.annotation)
        inner = f"{path}.{key}" if path else key
        if _is_list(field.annotation):
            inner += "[]"
        default = defaults.get(key, _default(field))
        yield f"| `{key}` | {_type(field.annotation)} | {_shown(default)} | {_meaning(section, key, inner)} |"
        inner_class = nested or _values_section(field.annotation)
        if inner_class is not None and _shown_class(inner_class) not in done:
            below.append((inner, _shown_class(inner_class)))
    yield ""
    for inner, nested in below:
        if nested not in done:
            yield from _section(nested, inner, done, EVALUATION_DEFAULTS if inner == "eval.workflow_config" else {})


def _shown_class(section: type[Section]) -> type[Section]:
    """The class whose table stands for a layer of it."""
    return WorkflowConfig if section is WorkflowLayer else section


def _meaning(section: type[Section], key: str, path: str) -> str:
    for name in (base.__name__ for base in (section, *_families(section))):
        if key in SECTIONS.get(name, {}):
            return SECTIONS[name][key] + _built(path)
    raise LookupError(f"{section.__name__}.{key} has no meaning in platoon/config/meanings.py")


def _built(path: str) -> str:
    """What of a key is not built yet."""
    rows: tuple[Unbuilt, ...] = (*TRAIN, *EVAL, *ENTRY_ROWS)
    row = next((row for row in rows if row.key == path.replace("[]", ".*")), None)
    if row is None:
        return ""
    works = [f"`{value}`" for value in row.accepts if isinstance(value, str)]
    return f" *(not built yet, but for {', '.join(works)})*" if len(works) > 1 else " *(not built yet)*"


def _families(section: type[Section]) -> list[type[Section]]:
    """The classes that extend this one: an entry's subset is described by the whole section."""
    return [found for child in section.__subclasses__() for found in (child, *_families(child))]


def _is_list(annotation: Any) -> bool:
    return get_origin(annotation) is tuple and section_of(get_args(annotation)[0]) is not None


def _values_section(annotation: Any) -> type[Section] | None:
    arguments = get_args(annotation) if get_origin(annotation) in (dict, tuple) else ()
    return next((found for found in map(section_of, arguments) if found is not None), None)


def _default(field: FieldInfo) -> Any:
    return field.get_default(call_default_factory=True) if not field.is_required() else ...


def _shown(default: Any) -> str:
    if default is ...:
        return "required"
    if isinstance(default, Section) or (
        isinstance(default, tuple) and any(isinstance(one, Section) for one in default)
    ):
        return "see below" if isinstance(default, Section) else "one empty entry"
    return f"`{show(default)}`"


def _type(annotation: Any) -> str:
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return _type(arguments[0])
    if origin in (Union, types.UnionType):
        return " or ".join(dict.fromkeys(_type(member) for member in arguments))
    if origin is Literal:
        return " or ".join(f"`{choice}`" for choice in arguments)
    if origin is tuple:
        return f"list of {_type(arguments[0])}"
    if origin is dict:
        return "mapping" if arguments[1] is Any else f"mapping to {_type(arguments[1])}"
    if isinstance(annotation, type) and issubclass(annotation, Section):
        return "section"
    names = {int: "integer", float: "number", bool: "true or false", str: "text", type(None): "null"}
    return names.get(annotation, "anything")


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(reference(), encoding="utf-8")
