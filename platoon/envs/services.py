"""From a service reference to a service: `python://module:Class`, `module:attr`.

Options are bound to the factory's signature before anything is built, so that a config check finds a misspelt one
without loading the environment.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from platoon.config.problems import ConfigError, Problem, unknown_key
from platoon.envs.contract import EnvironmentService
from platoon.envs.ors.options import OPTION_NAMES
from platoon.envs.ors.service import OrsEnvironmentService
from platoon.extensions.boundary import Boundary
from platoon.extensions.names import import_string, source_of
from platoon.extensions.options import signature_problems
from platoon.extensions.static import name_problem

SCHEMES = ("python://module:Class", "module:attr")
_UNBUILT = {"harbor": "Harbor data sets", "table": "task tables"}
_OPTIONS = ("service_kwargs",)
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
    return [
        f"{one.path[-1]}: {one.text}" if len(one.path) > 1 else one.text for one in entry_problems(reference, kwargs)
    ]


def entry_problems(reference: str, kwargs: Mapping[str, Any]) -> list[Problem]:
    """As `service_problems`, each at `service` or at the option below `service_kwargs`."""
    unbuilt = unbuilt_service(reference)
    if unbuilt is not None:
        return [Problem(("service",), unbuilt)]
    if reference.startswith("python://"):
        return _ors_problems(reference, kwargs)
    if ":" not in reference:
        return [Problem(("service",), f"unknown service {reference!r}; write one of {', '.join(SCHEMES)}")]
    with Boundary("environment", quiet=True) as caught:
        return [problem.under(_OPTIONS) for problem in signature_problems(_factory(reference), kwargs)]
    return [Problem(("service",), f"service {reference!r} cannot be imported: {caught.text}")]


def service_source(reference: str) -> str:
    """The code of a service, `module:qualname`. An environment class is not imported to find out."""
    if reference.startswith("python://"):
        return reference.removeprefix("python://")
    return source_of(_factory(reference), reference) if ":" in reference else reference


def unbuilt_service(reference: str) -> str | None:
    """Why a service cannot be used yet, or None."""
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


def _ors_problems(reference: str, kwargs: Mapping[str, Any]) -> list[Problem]:
    problems = []
    module, _, name = reference.removeprefix("python://").partition(":")
    if not module or not name:
        problems.append(Problem(("service",), f"service {reference!r} must have the form python://module:Class"))
    elif missing := name_problem(module, name):
        problems.append(Problem(("service",), f"service {reference!r}: {missing}"))
    if "environment" in kwargs:
        text = "the service reference already names it; remove the key"
        problems.append(Problem((*_OPTIONS, "environment"), text))
    unknown = [key for key in kwargs if key != "environment" and key not in OPTION_NAMES]
    return problems + [Problem((*_OPTIONS, key), unknown_key((key,), OPTION_NAMES, {})) for key in unknown]
