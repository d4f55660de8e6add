"""Named environments: a part of an `environments` entry under a name, so that a config can say `env: name`.

The named keys are the lowest layer below what the config wrote. Resolving a name imports only what brings it.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from pydantic import ValidationError

from platoon.config.entries import EnvironmentConfig
from platoon.config.problems import nearest
from platoon.extensions.boundary import Boundary
from platoon.extensions.entry_points import distribution, installed, load
from platoon.extensions.names import (
    check_name,
    check_version,
    import_string,
    is_reserved,
    split_reference,
    version_matches,
)
from platoon.extensions.registry import resolve_component

_FORBIDDEN = frozenset(
    {
        "env", "name", "weight", "task_sampler", "task_sampler_options", "group_admission", "group_admission_options",
        "max_staleness", "harness_options", "exclude_tasks", "trainer_config", "workflow", "workflow_kwargs",
        "eval_workflow_kwargs",
    }
)  # fmt: skip
_CORE = {"platoon-number-search": "platoon.envs.number_search.entry:NUMBER_SEARCH"}


@dataclass(frozen=True, init=False)
class EnvironmentEntry:
    """`keys` is part of an `environments` entry, checked here; ValueError names what is wrong.

    `harness_defaults` maps a harness's name to options laid under the entry's own `harness_options`.
    """

    name: str
    version: str
    description: str
    harness_defaults: Mapping[str, Mapping[str, Any]]
    keys: Mapping[str, Any]

    def __init__(
        self,
        name: str,
        version: str = "1",
        *,
        description: str = "",
        harness_defaults: Mapping[str, Mapping[str, Any]] | None = None,
        **keys: Any,
    ) -> None:
        check_name("environment", name)
        check_version("environment", version)
        _check_keys(f"environment {name}@{version}", keys)
        set_ = object.__setattr__
        set_(self, "name", name)
        set_(self, "version", version)
        set_(self, "description", description)
        set_(self, "harness_defaults", copy.deepcopy(dict(harness_defaults or {})))
        set_(self, "keys", copy.deepcopy(keys))

    @property
    def ref(self) -> str:
        return f"{self.name}@{self.version}"

    def entry(self) -> dict[str, Any]:
        """A fresh copy of the keys."""
        return copy.deepcopy(dict(self.keys))

    def defaults_for(self, harness: str) -> dict[str, Any]:
        """A fresh copy of the default options of a harness, named without its version; {} when it has none."""
        return copy.deepcopy(dict(self.harness_defaults.get(harness, {})))


def _check_keys(where: str, keys: Mapping[str, Any]) -> None:
    wrong = sorted(_FORBIDDEN & keys.keys())
    overrides = keys.get("eval_overrides")
    if isinstance(overrides, Mapping):
        wrong += [f"eval_overrides.{key}" for key in ("harness_options", "workflow_config") if key in overrides]
    workflow = keys.get("workflow_config")
    if isinstance(workflow, Mapping):
        wrong += [f"workflow_config.{key}" for key in workflow if key != "rollout_config"]
    if wrong:
        raise ValueError(f"{where}: a named environment may not set {', '.join(wrong)}; these belong to the config")
    try:
        EnvironmentConfig.model_validate(dict(keys))
    except ValidationError as error:
        texts = [f"{'.'.join(map(str, item['loc']))}: {item['msg']}" for item in error.errors()]
        raise ValueError(f"{where}: {'; '.join(texts)}") from None


class NamedEnvironments:
    """Expands `env:` keys. Pass an instance to the config loader."""

    def expand(self, entry: dict[str, Any]) -> dict[str, Any]:
        """The entry over the named keys. Without `env` it is returned as it is; expanding twice changes nothing."""
        reference = entry.get("env")
        if reference is None:
            return entry
        if not isinstance(reference, str) or not reference.strip():
            raise ValueError(f"env must be a name such as platoon-number-search, or module:attr; got {reference!r}")
        named = resolve_environment(reference)
        own = {key: value for key, value in entry.items() if key != "env"}
        merged = deep_merge(named.entry(), own)
        options: Mapping[str, Any] = own.get("harness_options") or {}
        defaults = _defaults(named, merged.get("harness"), own)
        if defaults:
            merged["harness_options"] = deep_merge(defaults, options)
        return {"env": reference if ":" in reference else named.ref, **merged}

    def config_class(self, reference: str, packages: Sequence[str]) -> type:
        """The class that an entry's `trainer_config` names, once the entries' packages are imported. ValueError when
        there is none; a package that fails is reported where components are looked up."""
        for package in packages:
            with Boundary("extension", quiet=True):
                import_module(package)
        found = resolve_component("trainer_config", reference)
        if not isinstance(found, type):
            raise ValueError(f"{reference!r} is {found!r}, not a config class")
        return found


def _defaults(named: EnvironmentEntry, harness: Any, own: Mapping[str, Any]) -> dict[str, Any]:
    if isinstance(harness, str):
        return named.defaults_for(split_reference(harness)[0])
    if isinstance(harness, Mapping) and len(harness) == 1:
        return named.defaults_for(split_reference(str(next(iter(harness))))[0])
    if isinstance(harness, Mapping) and "harness_options" not in own:
        with_defaults = [name for name in harness if named.defaults_for(split_reference(str(name))[0])]
        if with_defaults:
            raise ValueError(
                f"{named.ref} has default options for {', '.join(with_defaults)}, and one mapping of options "
                "serves all harnesses of a mixture; set harness_options in the entry"
            )
    return {}


def deep_merge(lower: Mapping[str, Any], upper: Mapping[str, Any]) -> dict[str, Any]:
    """`upper` over `lower`: mappings key by key, everything else replaced."""
    out = dict(lower)
    for key, value in upper.items():
        below = out.get(key)
        if isinstance(below, Mapping) and isinstance(value, Mapping):
            out[key] = deep_merge(below, value)
        else:
            out[key] = copy.deepcopy(value)
    return out


def resolve_environment(reference: str) -> EnvironmentEntry:
    """The entry of `name[@version]` or `module:attr`. ValueError says what is registered."""
    if ":" in reference:
        return _import(reference)
    name, wanted = split_reference(reference)
    found = _registered(name)
    if not found:
        known = sorted({*_CORE, *installed("environment")})
        close = nearest(name, known)
        hint = f"; did you mean {close}?" if close else ""
        raise ValueError(f"no environment is named {name!r}; there are {', '.join(known)}{hint}")
    matching = [item for item in found if wanted is None or version_matches(wanted, item.version)]
    if len(matching) == 1:
        return matching[0]
    refs = ", ".join(item.ref for item in found)
    if not matching:
        raise ValueError(f"environment {name!r} has no version {wanted!r}; there are {refs}")
    raise ValueError(f"environment {reference!r} fits several versions: {refs}; name one")


def environment_source(reference: str) -> str:
    """Where the entry of a reference is defined, `module:attribute`."""
    name = split_reference(reference)[0]
    point = installed("environment").get(name) if ":" not in reference and name not in _CORE else None
    return _CORE.get(name, point.value if point is not None else reference)


def core_environments() -> dict[str, str]:
    """The environments that platoon itself brings: name -> where the entry is."""
    return dict(_CORE)


def list_environments() -> list[tuple[str, str]]:
    """Name and source of every named environment; nothing is imported."""
    out = dict.fromkeys(_CORE, "platoon")
    for name, point in installed("environment").items():
        out.setdefault(name, distribution(point))
    return sorted(out.items())


def _import(reference: str) -> EnvironmentEntry:
    found: Any = None
    with Boundary("environment", quiet=True) as caught:
        found = import_string(reference)
    if caught.error is not None:
        raise ValueError(f"env {reference!r} cannot be imported: {caught.text}") from caught.error
    if not isinstance(found, EnvironmentEntry):
        raise ValueError(f"env {reference!r} is a {type(found).__name__}, not a platoon.EnvironmentEntry")
    if is_reserved(found.name) and not reference.startswith("platoon."):
        raise ValueError(f"env {reference!r}: the name {found.name!r} is reserved for platoon itself")
    return found


def _registered(name: str) -> list[EnvironmentEntry]:
    if name in _CORE:
        return [_import(_CORE[name])]
    value = load("environment", name, _reserved)
    if value is None:
        return []
    items = list(value) if isinstance(value, list | tuple) else [value]
    for item in items:
        if not isinstance(item, EnvironmentEntry) or item.name != name:
            raise ValueError(f"the entry point {name!r} must give EnvironmentEntry objects of that name, not {item!r}")
    by_ref: dict[str, EnvironmentEntry] = {}
    for item in items:
        if by_ref.setdefault(item.ref, item) != item:
            raise ValueError(f"environment {item.ref} is given twice by entry point {name!r}, with different content")
    return list(by_ref.values())


_reserved: Callable[[str], bool] = is_reserved
