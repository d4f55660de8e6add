"""The environments of a run: their services, listed tasks, settings by phase, and routes.

Opened once, before the training service is asked for anything. Every entry's problems come in one report. It plays
nothing itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from platoon.config import ConfigError, EnvironmentConfig, TrainRun, WorkflowConfig, workflow_settings
from platoon.credit.processors import get_reward_processor
from platoon.draw.admission.gate import check_admission
from platoon.draw.labels import label_problems
from platoon.draw.pool import ENVIRONMENT_COLUMN, TaskPool, build_pool
from platoon.draw.samplers.checks import check_sampling
from platoon.draw.samplers.settings import EntrySampling, SamplingSettings
from platoon.envs.contract import EnvironmentService
from platoon.envs.listing import Listing, Phase, list_entry
from platoon.envs.services import shared_service
from platoon.rollout.route import Route, build_route
from platoon.train.admitting import admission_settings


@dataclass(frozen=True)
class Played:
    """One entry as a phase plays it."""

    entry: EnvironmentConfig
    service: EnvironmentService
    settings: WorkflowConfig
    listing: Listing

    def raw_id(self, task_id: str, *, mixture: bool) -> str:
        """The service's own id of a pool row."""
        return task_id.removeprefix(f"{self.entry.label}::") if mixture else task_id


@dataclass
class Environments:
    """Entries of one phase by label, in the config's order, and the pool of their tasks."""

    phase: Phase
    played: Mapping[str, Played]
    pool: TaskPool
    _routes: dict[tuple[str, str | None], Route] = field(default_factory=dict)

    @property
    def mixture(self) -> bool:
        return len(self.played) > 1

    def entry_of(self, label: str | None) -> Played:
        """The entry that listed a row; the only one for a row without a label."""
        return self.played[label] if label is not None else next(iter(self.played.values()))

    def route(self, label: str | None, raw_id: str) -> Route:
        """How a task is played; the harness of a mixture of harnesses is drawn by the task's id."""
        played = self.entry_of(label)
        weighted = isinstance(played.entry.harness, Mapping)
        key = (played.entry.label, raw_id if weighted else None)
        if key not in self._routes:
            self._routes[key] = build_route(played.entry, self.phase, raw_id if weighted else None)
        return self._routes[key]

    def excluded(self) -> dict[str, dict[str, Any]]:
        """What `lock.json` keeps under `excluded_tasks`."""
        return {
            label: {
                split: {"listed": count, "excluded": list(ids)}
                for split, (count, ids) in played.listing.excluded.items()
            }
            for label, played in self.played.items()
            if played.listing.excluded
        }


async def open_environments(config: TrainRun, phase: Phase) -> Environments:
    """Build the services, list the tasks and check that every entry can be routed. ConfigError reports all entries."""
    problems: list[str] = []
    played: dict[str, Played] = {}
    for entry in config.environments:
        if entry.service is None:
            problems.append(f"environments[{entry.label}].service: name the environment to play, or set env")
            continue
        try:
            if entry.reward_processor is not None:
                get_reward_processor(entry.reward_processor)
            service = shared_service(entry.service, entry.service_kwargs)
            build_route(entry, phase, "" if isinstance(entry.harness, Mapping) else None)
            listing = await list_entry(entry, phase, service)
        except ConfigError as error:
            where = f"environments[{entry.label}]: "
            problems += [p if p.startswith("environments[") else where + p for p in error.problems]
            continue
        if not listing.rows:
            problems.append(f"environments[{entry.label}]: the service lists no task for {phase}; check split_name")
        played[entry.label] = Played(entry, service, workflow_settings(config, entry, phase), listing)
    if problems:
        raise ConfigError(problems, "the environments cannot be played")
    column = config.train.label_by or ENVIRONMENT_COLUMN
    pool = build_pool({label: p.listing.rows for label, p in played.items()}, column)
    if phase == "train" and (problems := label_problems(pool, column)):
        raise ConfigError(problems, "the tasks cannot be labelled")
    return Environments(phase, played, pool)


def sampling_settings(config: TrainRun) -> SamplingSettings:
    """What the config says about the order of draws. ConfigError for a sampler or rule that does not do."""
    settings = SamplingSettings(
        batch_size=config.train.batch_size,
        entries=tuple(
            EntrySampling(
                label=entry.label,
                weight=entry.weight,
                seed=entry.seed,
                task_sampler=entry.task_sampler,
                task_sampler_options=dict(entry.task_sampler_options),
                group_size=workflow_settings(config, entry, "train").group_size,
                success_threshold=entry.success_threshold,
            )
            for entry in config.environments
        ),
        task_sampler=config.train.task_sampler or "auto",
        task_sampler_options=dict(config.train.task_sampler_options),
        label_by=config.train.label_by or ENVIRONMENT_COLUMN,
    )
    check_sampling(settings)
    check_admission(admission_settings(config), settings)
    return settings
