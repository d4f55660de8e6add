"""The scheduler of a run, built from its config and its listed tasks.

Sampler, bounds and permits follow from the config; doubts about labels and permits are logged once. It starts nothing.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from platoon.config import TrainRun
from platoon.draw.dispatcher import Dispatcher, DispatchSettings
from platoon.draw.fingerprint import fingerprint
from platoon.draw.labels import label_warnings, permit_warnings
from platoon.draw.pool import ENVIRONMENT_COLUMN
from platoon.draw.samplers.sampling import build_sampling
from platoon.draw.view import TaskStatsView
from platoon.stats.store import TaskStatsStore
from platoon.train.dispatch import DriverOptions
from platoon.train.environments import Environments, sampling_settings

if TYPE_CHECKING:
    from platoon.train.run import RunPlan

log = logging.getLogger("platoon.train")


def dispatch_settings(config: TrainRun, environments: Environments) -> DispatchSettings:
    """The bounds of a run's dispatch."""
    return DispatchSettings(
        batch_size=config.train.batch_size,
        group_size=config.train.workflow_config.group_size,
        max_staleness=config.train.max_staleness,
        group_sizes={label: one.settings.group_size for label, one in environments.played.items()},
        limits=config.train.rollout_group_limits,
    )


def driver_options(config: TrainRun) -> DriverOptions:
    """How a run's groups hold permits and how a stop treats the step in progress."""
    train = config.train
    return DriverOptions(
        max_concurrent_rollouts=train.max_concurrent_rollouts or train.batch_size * train.workflow_config.group_size,
        rolling=train.permit_release == "rollout",
        finish_step_on_stop=train.num_minibatches > 1,
    )


def open_dispatcher(plan: RunPlan, store: TaskStatsStore) -> Dispatcher:
    """The dispatcher of this start, at the policy version it begins with; adaptive samplers read `store`.

    Logs doubts about labels and permits.
    """
    config, pool = plan.config, plan.train.pool
    settings, sampling = dispatch_settings(config, plan.train), sampling_settings(config)
    column = config.train.label_by or ENVIRONMENT_COLUMN
    permits = driver_options(config).max_concurrent_rollouts
    for warning in (*label_warnings(pool, column, settings.limits), *permit_warnings(pool, settings, permits)):
        log.warning("%s", warning)
    steps_left = max(plan.end_step - plan.start_step, 0)
    view = TaskStatsView(store, lambda: dispatcher.version)
    samplers = build_sampling(sampling, pool, view)
    dispatcher = Dispatcher(pool, samplers, settings, start=plan.start, steps_left=steps_left)
    dispatcher.fingerprint = fingerprint(sampling, pool)
    dispatcher.version = plan.resume.policy_version if plan.resume is not None else 0
    dispatcher.step = plan.start_step
    return dispatcher
