"""What the entries of a configuration name, looked up without building it: packages, harnesses, services."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from importlib import import_module

from platoon.config import EnvironmentConfig, Loaded
from platoon.config.problems import ConfigError, Problem
from platoon.envs.listing import dataset_problems
from platoon.envs.services import service_problems
from platoon.extensions.boundary import Boundary
from platoon.harness.registry import get_harness


def component_problems(loaded: Loaded) -> list[str]:
    """One line a component that cannot be found or does not take what the configuration gives it."""
    return [str(problem) for problem in _all(loaded.config.environments)]


def _all(entries: Sequence[EnvironmentConfig]) -> Iterator[Problem]:
    for index, entry in enumerate(entries):
        failed = _import_package(entry)
        if failed is not None:
            yield Problem(("environments", index, "package"), failed)
            continue
        yield from (problem.under(("environments", index)) for problem in _entry(entry))


def _import_package(entry: EnvironmentConfig) -> str | None:
    """Import the entry's package; what went wrong, or None."""
    if entry.package is None:
        return None
    with Boundary("environment", quiet=True) as caught:
        import_module(entry.package)
    return f"cannot import {entry.package}: {caught.text}" if caught.error is not None else None


def _entry(entry: EnvironmentConfig) -> Iterator[Problem]:
    for name in harness_names(entry):
        try:
            get_harness(name)
        except ConfigError as error:
            yield Problem(("harness",), str(error))
    if entry.service is not None:
        for text in service_problems(entry.service, entry.service_kwargs):
            yield Problem(("service",), text)
        for key in ("dataset_kwargs", "eval_dataset_kwargs"):
            for text in dataset_problems(getattr(entry, key)):
                yield Problem((key,), text)


def harness_names(entry: EnvironmentConfig) -> tuple[str, ...]:
    """The harnesses an entry may draw."""
    if entry.harness is None:
        return ()
    return (entry.harness,) if isinstance(entry.harness, str) else tuple(entry.harness)
