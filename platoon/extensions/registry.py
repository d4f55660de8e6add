"""Components of one's own by name: loaders, rollouts, workflows and config classes that a `package` registers.

Harnesses, programs, environments, samplers and rules have registries of their own, with versions and options.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar, overload

from platoon.config.problems import nearest
from platoon.extensions.boundary import Boundary
from platoon.extensions.names import import_string

KINDS = ("dataset_loader", "task_loader", "rollout", "reward_processor", "workflow", "trainer_config")
_MISSING: Any = object()
T = TypeVar("T")


@dataclass(frozen=True)
class Registered:
    """A component under its name. `metadata`: what its author said of it."""

    kind: str
    name: str
    value: Any
    metadata: Mapping[str, Any] = field(default_factory=dict)


_registered: dict[tuple[str, str], Registered] = {}


def register_component(kind: str, name: str, value: Any = _MISSING, *, exist_ok: bool = False, **metadata: Any) -> Any:
    """Make a component known by name; without `value` a decorator. The component is returned unchanged.

    ValueError for an unknown kind, a name with ':' in it, and a name that another component has (unless `exist_ok`,
    which replaces it).
    """
    if kind not in KINDS:
        raise ValueError(f"no component is of kind {kind!r}; there are {', '.join(KINDS)}")
    if not name.strip() or ":" in name:
        raise ValueError(f"{kind} name {name!r}: use a word without ':'")

    def add(component: Any) -> Any:
        known = _registered.get((kind, name))
        if known is not None and known.value is not component and not exist_ok:
            raise ValueError(f"{kind} {name!r} is already registered as {known.value!r}")
        _registered[kind, name] = Registered(kind, name, component, metadata)
        return component

    return add if value is _MISSING else add(value)


def resolve_component(kind: str, reference: Any) -> Any:
    """What a reference names: a registered name, `module:attr[.attr]`, or `module.attr`; an object stands for itself.

    ValueError says why it names nothing.
    """
    if not isinstance(reference, str):
        return reference
    known = _registered.get((kind, reference))
    if known is not None:
        return known.value
    module, dot, attribute = reference.rpartition(".")
    target = reference if ":" in reference else f"{module}:{attribute}" if dot else None
    if target is None:
        names = sorted(registered(kind))
        close = nearest(reference, names)
        hint = f"; did you mean {close}?" if close else f"; there are {', '.join(names)}" if names else ""
        raise ValueError(
            f"no {kind} is named {reference!r}{hint}. Write module:attribute, or name a package that has it"
        )
    with Boundary("extension", quiet=True) as caught:
        return import_string(target)
    raise ValueError(f"{kind} {reference!r} cannot be imported: {caught.text}") from caught.error


def registered(kind: str) -> dict[str, Any]:
    """What is registered of a kind, by name."""
    return {name: one.value for (found, name), one in _registered.items() if found == kind}


class Register(Protocol):
    """Registers a component of one kind: a decorator without `value`."""

    @overload
    def __call__(self, name: str, *, exist_ok: bool = False, **metadata: Any) -> Callable[[T], T]: ...
    @overload
    def __call__(self, name: str, value: T, *, exist_ok: bool = False, **metadata: Any) -> T: ...


def _registrar(kind: str) -> Register:
    def register(name: str, value: Any = _MISSING, *, exist_ok: bool = False, **metadata: Any) -> Any:
        return register_component(kind, name, value, exist_ok=exist_ok, **metadata)

    register.__doc__ = f"Register a {kind.replace('_', ' ')}; see `register_component`."
    return register


register_dataset_loader = _registrar("dataset_loader")
register_task_loader = _registrar("task_loader")
register_rollout = _registrar("rollout")
register_reward_processor = _registrar("reward_processor")
register_workflow = _registrar("workflow")
register_trainer_config = _registrar("trainer_config")
