"""From a service reference to a service: `python://module:Class`, `module:attr`.

Options are bound to the factory's signature before anything is built, so that a config check finds a misspelt one
without loading the environment.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Mapping
from typing import Any

from platoon.config.problems import ConfigError, unknown_key
from platoon.envs.contract import EnvironmentService
from platoon.envs.ors.options import OPTION_NAMES
from platoon.envs.ors.service import OrsEnvironmentService
from platoon.extensions.names import import_string

SCHEMES = ("python://module:Class", "module:attr")
_UNBUILT = {"harbor": "Harbor data sets", "table": "task tables"}
_built: dict[str, EnvironmentService] = {}


def build_service(reference: str, kwargs: Mapping[str, Any]) -> EnvironmentService:
    """A service for the reference. ConfigError when reference or options are wrong."""
    problems = service_problems(reference, kwargs)
    if problems:
        raise ConfigError(problems, f"service {reference}")
    try:
        service = _factory(reference)(**kwargs)
    except (ImportError, TypeError, ValueError) as error:
        raise ConfigError(f"service_kwargs: {error}", f"service {reference}") from error
    if not isinstance(service, EnvironmentService):
        raise ConfigError(
            f"it gave {type(service).__name__}, which lacks name, list_tasks, get_task or open", f"service {reference}"
        )
    return service


def shared_service(reference: str, kwargs: Mapping[str, Any]) -> EnvironmentService:
    """The process's one service for this reference and these options; rollouts and listings share it."""
    key = json.dumps([reference, kwargs], sort_keys=True, default=repr)
    if key not in _built:
        _built[key] = build_service(reference, kwargs)
    return _built[key]


def service_problems(reference: str, kwargs: Mapping[str, Any]) -> list[str]:
    """What is wrong with a reference or its options, found without building the service. Each names key and remedy."""
    unbuilt = _unbuilt(reference)
    if unbuilt is not None:
        return [unbuilt]
    if reference.startswith("python://"):
        return _ors_problems(reference, kwargs)
    if ":" not in reference:
        return [f"unknown service {reference!r}; write one of {', '.join(SCHEMES)}"]
    try:
        factory = _factory(reference)
    except (ImportError, ValueError) as error:
        return [f"service {reference!r} cannot be imported: {error}"]
    return _binding_problems(factory, kwargs)


def _unbuilt(reference: str) -> str | None:
    scheme = reference.partition("://")[0]
    if scheme in ("ors+http", "ors+https") and "://" in reference:
        return f"{scheme}:// (environments on a remote server) is not built yet; use python://module:Class"
    if reference in _UNBUILT:
        return f"service {reference!r} ({_UNBUILT[reference]}) is not built yet; use python://module:Class"
    return None


def _factory(reference: str) -> Callable[..., Any]:
    if reference.startswith("python://"):

        def build(**kwargs: Any) -> OrsEnvironmentService:
            return OrsEnvironmentService.from_uri(reference, **kwargs)

        return build
    found = import_string(reference)
    if not callable(found):
        raise ValueError(f"it names {found!r}, which cannot be called")
    factory: Callable[..., Any] = found
    return factory


def _ors_problems(reference: str, kwargs: Mapping[str, Any]) -> list[str]:
    problems = []
    module, _, name = reference.removeprefix("python://").partition(":")
    if not module or not name:
        problems.append(f"service {reference!r} must have the form python://module:Class")
    if "environment" in kwargs:
        problems.append("environment: the service reference already names it; remove the key")
    unknown = [key for key in kwargs if key != "environment" and key not in OPTION_NAMES]
    return problems + [f"{key}: {unknown_key((key,), OPTION_NAMES, {})}" for key in unknown]


def _binding_problems(factory: Callable[..., Any], kwargs: Mapping[str, Any]) -> list[str]:
    try:
        signature = inspect.signature(factory)
    except (TypeError, ValueError):
        return []  # a factory in C tells nothing about its parameters
    parameters = signature.parameters.values()
    named = {p.name: p for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)}
    problems = []
    if not any(p.kind is p.VAR_KEYWORD for p in parameters):
        hints: Mapping[str, str] = getattr(factory, "UNKNOWN_KEY_HINTS", {})
        problems = [f"{key}: {unknown_key((key,), named, hints)}" for key in kwargs if key not in named]
    missing = [name for name, p in named.items() if p.default is p.empty and name not in kwargs]
    return problems + [f"{name}: required by the service, and missing" for name in missing]
