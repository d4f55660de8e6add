"""Samplers and admission rules by reference: core names, registered names, entry points, `module:Class`.

A class is looked at when it is named; its module is imported then and not before.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from platoon.config.problems import nearest
from platoon.extensions import entry_points
from platoon.extensions.boundary import Boundary
from platoon.extensions.names import import_string
from platoon.extensions.options import OptionSchema, option_problems, option_record, parse_options

ClassT = TypeVar("ClassT", bound=type[Any])


@dataclass(frozen=True)
class Component:
    """A class that a reference names, with the schema of its options and its own check of them."""

    ref: str
    cls: type[Any]
    kind: str
    options: OptionSchema = None
    check: Callable[[Any, Any], None] | None = None
    origin: str = "core"
    entry_point: str | None = None

    @property
    def source(self) -> str:
        """`module:Qualname` of the class."""
        return f"{self.cls.__module__}:{self.cls.__qualname__}"

    @property
    def owner(self) -> str:
        return f"the {self.kind.replace('_', ' ')} {self.ref}"

    def parse(self, given: Mapping[str, Any]) -> Any:
        """The options as the class gets them. ConfigError."""
        return parse_options(self.options, given, self.owner)

    def recorded(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """The options with their defaults, as JSON. ConfigError."""
        return option_record(self.options, given, self.owner)

    def problems(self, at: str, given: Mapping[str, Any], context: Any) -> list[str]:
        """What is wrong with these options: by their schema, then by the component's own check. `at`: its key."""
        if found := option_problems(self.options, given, self.owner):
            return [str(problem.under((f"{at}_options",))) for problem in found]
        if self.check is None:
            return []
        with Boundary("extension", quiet=True) as caught:
            self.check(self.parse(given), context)
        if caught.error is None:
            return []
        return [f"{at}: {caught.error if isinstance(caught.error, ValueError) else caught.text}"]


class Registry:
    """Components of one kind. `core` maps a name to its class, None where the name needs none."""

    def __init__(
        self, kind: str, core: Mapping[str, type[Any] | None], problems: Callable[[type[Any]], list[str]]
    ) -> None:
        self.kind = kind
        self.core = dict(core)
        self._problems = problems
        self._registered: dict[str, Component] = {}

    def register(
        self, name: str, options: OptionSchema = None, check: Callable[[Any, Any], None] | None = None
    ) -> Callable[[ClassT], ClassT]:
        """Class decorator. ValueError for a bad or reserved name, or one that another class has."""
        if not name or any(char.isspace() or char in ":@" for char in name):
            raise ValueError(f"{self.kind} name {name!r}: use no spaces, ':' or '@'")
        if name.casefold().replace("-", "_") in self.core:
            raise ValueError(f"{self.kind} name {name!r} is kept for platoon's own")

        def mark(cls: ClassT) -> ClassT:
            made = replace(self._component(name, cls, "registered"), options=options or _schema(cls))
            made = replace(made, check=check or made.check)
            known = self._registered.get(name)
            if known is not None and known.source != made.source:
                raise ValueError(f"{self.kind} {name!r} is {known.source} already; {made.source} needs another name")
            self._registered[name] = made
            return cls

        return mark

    def resolve(self, reference: str) -> Component:
        """What a reference names. ValueError for an unknown name or a class that breaks the contract."""
        if reference in self.core:
            cls = self.core[reference]
            if cls is None:
                raise ValueError(f"{self.kind} {reference!r} is no class of its own")
            return self._component(reference, cls, "core")
        if reference in self._registered:
            return self._checked(self._registered[reference])
        if ":" in reference:
            try:
                return self._checked(self._component(reference, _class(reference, import_string(reference)), "import"))
            except (ImportError, SyntaxError) as error:
                raise ValueError(f"{reference!r} cannot be imported: {error}") from error
        found = entry_points.load(self.kind, reference, lambda name: False)
        if reference in self._registered:  # the entry point is a module that registers it
            return self._checked(self._registered[reference])
        if found is not None:
            made = self._component(reference, _class(reference, found), "entry point")
            return self._checked(replace(made, entry_point=reference))
        raise ValueError(self._unknown(reference))

    def of_class(self, cls: type[Any]) -> Component:
        """A class at hand, as `module:Class` would name it. ValueError when it breaks the contract."""
        return self._checked(self._component(f"{cls.__module__}:{cls.__qualname__}", cls, "import"))

    def _unknown(self, reference: str) -> str:
        known = [*self.core, *self._registered, *entry_points.installed(self.kind)]
        close = nearest(reference, known)
        hint = f"did you mean {close!r}?" if close else f"there is {', '.join(sorted(known))}, or module:Class"
        return f"{reference!r} is not known; {hint}"

    def _component(self, reference: str, cls: type[Any], origin: str) -> Component:
        return Component(reference, cls, self.kind, _schema(cls), getattr(cls, "check", None), origin)

    def _checked(self, component: Component) -> Component:
        if problems := self._problems(component.cls):
            raise ValueError(f"{component.ref!r} ({component.source}): {'; '.join(problems)}")
        return component


def method_problems(cls: type[Any], required: tuple[str, ...], optional: tuple[str, ...] = ()) -> list[str]:
    """Methods that are missing, or asynchronous where they must not be."""
    problems = [f"needs a method {name}" for name in required if not callable(getattr(cls, name, None))]
    both = (*required, *optional)
    return problems + [
        f"{name} must not be async" for name in both if inspect.iscoroutinefunction(getattr(cls, name, 0))
    ]


def _schema(cls: type[Any]) -> OptionSchema:
    schema: OptionSchema = getattr(cls, "options_schema", None)
    return schema


def _class(reference: str, found: Any) -> type[Any]:
    if not isinstance(found, type):
        raise ValueError(f"{reference!r} names {found!r}, which is no class")
    return found
