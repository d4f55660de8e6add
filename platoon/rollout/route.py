"""How a task of one environment is played: which service, which harness, with which options.

Built from a config entry; a mixture of harnesses is drawn from the task's id, so that every member of a group and every
epoch plays a task the same way.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any, Literal

from platoon.config.entries import AgentsConfig, EnvironmentConfig, OnHarnessExit
from platoon.config.problems import ConfigError
from platoon.envs.contract import EnvironmentService
from platoon.envs.named import deep_merge
from platoon.envs.services import service_problems, shared_service
from platoon.harness.registry import FunctionHarness, get_harness
from platoon.rollout.programs import get_program

Phase = Literal["train", "eval"]


@dataclass(frozen=True)
class Route:
    """Plain data that can be sent to another process, unless it was made with a service object (`made_service`)."""

    label: str
    harness: FunctionHarness
    service_reference: str = ""
    service_kwargs: Mapping[str, Any] = field(default_factory=dict)
    harness_options: Mapping[str, Any] = field(default_factory=dict)
    program: str = "single"
    on_context_overflow: Literal["grade", "exclude"] = "grade"
    on_harness_exit: OnHarnessExit = field(default_factory=OnHarnessExit)
    agents: AgentsConfig = field(default_factory=AgentsConfig)
    made_service: EnvironmentService | None = None

    @property
    def service(self) -> EnvironmentService:
        """The process's service of this reference; built on first use. ConfigError when it cannot be."""
        return self.made_service or shared_service(self.service_reference, self.service_kwargs)


def build_route(entry: EnvironmentConfig, phase: Phase, task_id: str | None = None) -> Route:
    """The route of an entry's task. Without a task, of any: this checks all its harnesses.

    ConfigError lists every problem with `environments[<label>]` and its key.
    """
    where = f"environments[{entry.label}]"
    problems = []
    if entry.package is not None:
        try:
            import_module(entry.package)
        except ImportError as error:
            raise ConfigError(f"{where}.package: {entry.package!r} cannot be imported: {error}") from error
    if entry.service is None:
        problems.append(f"{where}.service: missing; name an environment with env or service")
    else:
        problems += [f"{where}.service: {text}" for text in service_problems(entry.service, entry.service_kwargs)]
    harnesses: dict[str, FunctionHarness] = {}
    for reference in _references(entry):
        try:
            harnesses[reference] = get_harness(reference)
        except ConfigError as error:
            problems.append(f"{where}.harness: {error}")
    if entry.harness is None:
        problems.append(f"{where}.harness: missing; name a harness such as platoon-react")
    try:
        get_program(entry.program)
    except ConfigError as error:
        problems.append(f"{where}.program: {error}")
    if problems:
        raise ConfigError(problems)
    options: Mapping[str, Any] = entry.harness_options
    if phase == "eval":
        options = deep_merge(options, entry.eval_overrides.harness_options)
    return Route(
        label=entry.label,
        harness=harnesses[draw_harness(entry, task_id)],
        service_reference=entry.service or "",
        service_kwargs=entry.service_kwargs,
        harness_options=options,
        program=entry.program,
        on_context_overflow=entry.on_context_overflow,
        on_harness_exit=entry.on_harness_exit,
        agents=entry.agents,
    )


def draw_harness(entry: EnvironmentConfig, task_id: str | None) -> str:
    """The harness reference that plays a task: by weight, from the entry's seed and the task's id alone."""
    if isinstance(entry.harness, str):
        return entry.harness
    weights = entry.harness or {}
    names = sorted(weights)
    digest = hashlib.sha256(f"{entry.seed}:{task_id}".encode()).digest()
    point = int.from_bytes(digest[:8], "big") / 2**64 * sum(weights.values())
    for name in names:
        point -= weights[name]
        if point < 0:
            return name
    return names[-1]


def _references(entry: EnvironmentConfig) -> list[str]:
    if entry.harness is None:
        return []
    return [entry.harness] if isinstance(entry.harness, str) else sorted(entry.harness)
