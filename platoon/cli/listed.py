"""Listing the tasks of a configuration and planning their draws, as a run would before its first step."""

from __future__ import annotations

import asyncio
import gc
from dataclasses import dataclass
from typing import Literal

from platoon.config import ConfigError, EvalRun, Loaded, TrainRun
from platoon.envs.listing import list_rows
from platoon.envs.services import build_service
from platoon.extensions.boundary import Boundary


@dataclass(frozen=True)
class Listed:
    """`problems`: what a run would refuse now; `lines`: the plan, or the tasks of each entry."""

    problems: tuple[str, ...] = ()
    lines: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()


def list_tasks(loaded: Loaded) -> Listed:
    """List the tasks of every phase that the configuration runs."""
    config = loaded.config
    gc.disable()  # a third of the time: hundreds of thousands of rows are made, and none becomes garbage
    try:
        with Boundary("environment", quiet=True) as caught:
            return asyncio.run(_evaluation(config) if isinstance(config, EvalRun) else _training(config))
    finally:
        gc.enable()
    if isinstance(caught.error, ConfigError):
        return Listed(tuple(caught.error.problems))
    notes = getattr(caught.error, "__notes__", ())
    return Listed((f"the tasks cannot be listed: {' '.join((caught.text, *notes))}",))


async def _training(config: TrainRun) -> Listed:
    from platoon.train.planning import plan_tasks

    planned = await plan_tasks(config)
    lines = list(planned.lines)
    if planned.held_out is not None:
        lines += [f"evaluation: {len(p.listing.rows)} tasks of {label}" for label, p in planned.held_out.played.items()]
    return Listed((), tuple(lines), planned.warnings)


async def _evaluation(config: EvalRun) -> Listed:
    problems: list[str] = []
    lines: list[str] = []
    phase: Literal["train", "eval"] = "train" if config.split == "train" else "eval"
    for entry in config.environments:
        if entry.service is None:
            problems.append(f"environments[{entry.label}].service: missing; no tasks can be listed without it")
            continue
        try:
            service = build_service(entry.service, entry.service_kwargs)
            rows = await list_rows(entry, phase, service, split=config.split)
        except ConfigError as error:
            problems += error.problems
            continue
        lines.append(f"evaluation: {len(rows)} tasks of {entry.label}")
    return Listed(tuple(problems), tuple(lines))
