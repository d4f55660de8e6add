"""The components that entries name for their rollouts, looked up without building a service.

Packages are imported first; an entry whose package fails has that one problem. Everything wrong is reported together.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from typing import Literal

from platoon.config.entries import EnvironmentConfig
from platoon.config.problems import ConfigError, KeyPath
from platoon.envs.listing import dataset_problems
from platoon.envs.named import deep_merge, environment_source, resolve_environment
from platoon.envs.services import entry_problems, service_source
from platoon.extensions.boundary import Boundary
from platoon.extensions.components import Components, by_phase
from platoon.extensions.names import source_of
from platoon.harness.registry import get_harness
from platoon.rollout.programs import get_program

Phase = Literal["train", "eval"]


def resolve_entries(entries: Sequence[EnvironmentConfig], phases: Sequence[Phase]) -> Components:
    """Look up what every entry names. `phases`: those that the configuration plays, for the recorded options."""
    found = Components()
    for index, entry in enumerate(entries):
        at: KeyPath = ("environments", index)
        if import_package(entry, at, found):
            _entry(entry, at, phases, found)
    return found


def import_package(entry: EnvironmentConfig, at: KeyPath, found: Components) -> bool:
    """Import the entry's package; False when that failed, which is then a problem."""
    if entry.package is None:
        return True
    with Boundary("extension", quiet=True) as caught:
        import_module(entry.package)
    if caught.error is not None:
        found.refuse((*at, "package"), f"cannot import {entry.package}: {caught.text}")
    return caught.error is None


def harness_names(entry: EnvironmentConfig) -> tuple[str, ...]:
    """The harnesses an entry may draw."""
    if entry.harness is None:
        return ()
    return (entry.harness,) if isinstance(entry.harness, str) else tuple(entry.harness)


def _entry(entry: EnvironmentConfig, at: KeyPath, phases: Sequence[Phase], found: Components) -> None:
    label = entry.label
    if entry.env is not None:
        try:
            named = resolve_environment(entry.env)
            found.add("environment", entry.env, source=environment_source(entry.env), resolved=named.ref, label=label)
        except ValueError as error:
            found.refuse((*at, "env"), str(error))
    evaluated = deep_merge(entry.harness_options, entry.eval_overrides.harness_options)
    for name in harness_names(entry):
        try:
            harness = get_harness(name)
        except ConfigError as error:
            found.refuse((*at, "harness"), str(error))
            continue
        options = by_phase(phases, entry.harness_options, evaluated)
        found.add("harness", name, source=harness.source, resolved=harness.ref, label=label, options=options)
    if entry.harness is not None:
        try:
            program = get_program(entry.program)
            found.add("program", entry.program, source=source_of(program, entry.program), label=label)
        except ConfigError as error:
            found.refuse((*at, "program"), str(error))
    if entry.service is not None:
        _service(entry, entry.service, at, found)


def _service(entry: EnvironmentConfig, reference: str, at: KeyPath, found: Components) -> None:
    problems = entry_problems(reference, entry.service_kwargs)
    found.problems += [problem.under(at) for problem in problems]
    if not problems:
        found.add("service", reference, source=service_source(reference), label=entry.label)
    if entry.dataset_loader is None:
        for key in ("dataset_kwargs", "eval_dataset_kwargs"):
            for text in dataset_problems(getattr(entry, key)):
                found.refuse((*at, key), text)
