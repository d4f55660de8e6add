"""What an evaluation plays: every task of the split, with the way it is played, before anything starts."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from platoon.config import ConfigError, EnvironmentConfig, EvalRun
from platoon.config.layers import lay, rollout_settings
from platoon.config.rollout import RolloutConfig
from platoon.envs.listing import Listing, list_entry
from platoon.rollout.route import Phase, Route, build_route

log = logging.getLogger("platoon.eval")


@dataclass(frozen=True)
class EvalTask:
    """One task: its id in the report, its own id in its environment, and how it is played."""

    task_id: str
    raw_id: str
    route: Route
    settings: RolloutConfig


@dataclass(frozen=True)
class EvalTasks:
    """The tasks in the config's order. `excluded`: entry -> split -> what was left out, for `lock.json`."""

    tasks: tuple[EvalTask, ...]
    excluded: Mapping[str, Any]


async def list_tasks(config: EvalRun) -> EvalTasks:
    """List all entries; ids of a mixture are `<entry>::<id>`. ConfigError reports the problems of all entries."""
    if not config.environments:
        raise ConfigError("environments: name at least one environment to evaluate on")
    problems: list[str] = []
    found: dict[str, EvalTask] = {}
    excluded: dict[str, Any] = {}
    repeated = 0
    for entry in config.environments:
        try:
            tasks, listing = await _list(config, entry)
        except ConfigError as error:
            where = f"environments[{entry.label}]"
            problems += [text if text.startswith(where) else f"{where}: {text}" for text in error.problems]
            continue
        for task in tasks:
            repeated += task.task_id in found
            found.setdefault(task.task_id, task)
        if listing.excluded:
            excluded[entry.label] = {
                split: {"listed": count, "excluded": list(ids)} for split, (count, ids) in listing.excluded.items()
            }
    if problems:
        raise ConfigError(problems)
    if not found:
        raise ConfigError(f"split: no environment lists a task in {config.split!r}; name another split")
    if repeated:
        log.warning("%d tasks are listed more than once; each is evaluated once", repeated)
    return EvalTasks(tuple(found.values()), excluded)


async def _list(config: EvalRun, entry: EnvironmentConfig) -> tuple[list[EvalTask], Listing]:
    phase: Phase = "train" if config.split == "train" else "eval"
    weighted = isinstance(entry.harness, Mapping)
    route = build_route(entry, phase, "" if weighted else None)
    listing = await list_entry(entry, phase, route.service, split=config.split)
    settings = lay(
        rollout_settings(config.inference, entry, config.split),
        {"model_name": config.inference.model_name, "return_dict": True, "train": False},
    )
    prefix = f"{entry.label}::" if len(config.environments) > 1 else ""
    tasks = [
        EvalTask(
            task_id=prefix + row.task_id,
            raw_id=row.task_id,
            route=build_route(entry, phase, row.task_id) if weighted else route,
            settings=settings,
        )
        for row in listing.rows
    ]
    return tasks, listing
