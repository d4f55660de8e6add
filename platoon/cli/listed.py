"""Listing the tasks of a configuration, as a run would before its first step."""

from __future__ import annotations

import asyncio
from typing import Literal

from platoon.config import ConfigError, EvalRun, Loaded, TrainRun
from platoon.envs.listing import list_rows
from platoon.envs.services import build_service


def list_tasks(loaded: Loaded) -> tuple[list[str], list[str]]:
    """Problems, and one line an entry with its number of tasks, for each phase that the configuration runs."""
    return asyncio.run(_list(loaded.config))


async def _list(config: TrainRun | EvalRun) -> tuple[list[str], list[str]]:
    problems: list[str] = []
    lines: list[str] = []
    counts: dict[str, int] = {}
    for phase, split in _phases(config):
        for index, entry in enumerate(config.environments):
            if entry.service is None:
                problems.append(f"environments.{index}.service: missing; no tasks can be listed without it")
                continue
            try:
                service = build_service(entry.service, entry.service_kwargs)
                rows = await list_rows(entry, phase, service, split=split)
            except ConfigError as error:
                problems += error.problems
                continue
            lines.append(f"{entry.label}: {len(rows)} tasks ({phase})")
            counts[phase] = counts.get(phase, 0) + len(rows)
    if isinstance(config, TrainRun) and not problems:
        problems += _too_few(config, counts.get("train", 0))
    return problems, lines


def _phases(config: TrainRun | EvalRun) -> list[tuple[Literal["train", "eval"], str | None]]:
    if isinstance(config, EvalRun):
        return [("train" if config.split == "train" else "eval", config.split)]
    return [("train", None), ("eval", None)] if config.eval.every else [("train", None)]


def _too_few(config: TrainRun, count: int) -> list[str]:
    size = config.train.batch_size
    if len(config.environments) == 1 and config.train.task_sampler == "auto" and count < size:
        return [
            f"train.batch_size: {size} is more than the {count} tasks that training draws in whole batches; "
            "lower it, or set train.task_sampler: weighted"
        ]
    return []
