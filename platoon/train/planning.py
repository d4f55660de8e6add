"""What a training run would draw: tasks listed, order planned, and what then turns out not to fit.

Shared by the run itself and by `platoon config validate --tasks`. Asks no training service and writes nothing.
"""

from __future__ import annotations

from dataclasses import dataclass

from platoon.config import ConfigError, TrainRun
from platoon.draw.plan import Duration, SamplingPlan, plan_lines, plan_warnings, sampling_plan
from platoon.train.admitting import admission_lines
from platoon.train.environments import Environments, open_environments, sampling_settings
from platoon.train.scheduling import dispatch_warnings


@dataclass(frozen=True)
class Planned:
    """The listed tasks of a run and the order planned over them. `interval`: steps between evaluations, 0 for none."""

    train: Environments
    held_out: Environments | None
    sampling: SamplingPlan
    interval: int
    lines: tuple[str, ...]
    warnings: tuple[str, ...]


async def plan_tasks(config: TrainRun) -> Planned:
    """List the tasks of both phases and plan the draws. Raises ConfigError for what cannot be trained."""
    train = await open_environments(config, "train")
    duration = Duration(config.train.num_epochs, config.train.max_training_steps)
    sampling = sampling_plan(sampling_settings(config), train.pool, duration)
    if sampling.epoch_size < config.train.batch_size:
        raise ConfigError(
            f"train.batch_size: {config.train.batch_size} is more than the {len(train.pool)} training tasks; "
            "lower it, or use train.task_sampler: weighted"
        )
    interval = config.eval.interval(sampling.batches)
    held_out = await open_environments(config, "eval") if interval else None
    warnings = (*plan_warnings(sampling), *dispatch_warnings(config, train))
    lines = tuple(plan_lines(sampling, admission_lines(config)))
    return Planned(train, held_out, sampling, interval, lines, warnings)
