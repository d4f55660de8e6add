"""The scheduler of a run, built from its config and its listed tasks.

Samplers, bounds, permits and rules follow from the config. It starts nothing.
"""

from __future__ import annotations

import logging

from platoon.config import TrainRun, workflow_settings
from platoon.draw.admission.gate import AdmissionGate
from platoon.draw.dispatcher import Dispatcher, DispatchSettings
from platoon.draw.fingerprint import fingerprint
from platoon.draw.labels import label_warnings, permit_warnings
from platoon.draw.pool import ENVIRONMENT_COLUMN
from platoon.draw.samplers.sampling import build_sampling, entry_infos
from platoon.draw.view import TaskStatsView
from platoon.rollout.group import FATAL
from platoon.stats.store import TaskStatsStore
from platoon.train.admitting import admission_settings, admission_warnings, rule_mode
from platoon.train.dispatch import DriverOptions
from platoon.train.environments import Environments, sampling_settings
from platoon.train.plan import RunPlan
from platoon.train.starts import TIMER_EXTRA_SECONDS, StartLimit

log = logging.getLogger("platoon.train")


def dispatch_settings(config: TrainRun, environments: Environments) -> DispatchSettings:
    """The bounds of a run's dispatch."""
    return DispatchSettings(
        batch_size=config.train.batch_size,
        group_size=config.train.workflow_config.group_size,
        max_staleness=config.train.max_staleness,
        group_sizes={label: one.settings.group_size for label, one in environments.played.items()},
        limits=config.train.rollout_group_limits,
        cap=config.train.groups_per_step_cap if rule_mode(config) else None,
    )


def driver_options(config: TrainRun) -> DriverOptions:
    """How a run's groups hold permits and how a stop treats the step in progress."""
    train = config.train
    return DriverOptions(
        max_concurrent_rollouts=train.max_concurrent_rollouts or train.batch_size * train.workflow_config.group_size,
        rolling=train.permit_release == "rollout",
        finish_step_on_stop=train.num_minibatches > 1,
        fatal=FATAL,
    )


def dispatch_warnings(config: TrainRun, environments: Environments) -> list[str]:
    """Doubts about labels, permits and admission that only the listed tasks show."""
    pool, settings = environments.pool, dispatch_settings(config, environments)
    column = config.train.label_by or ENVIRONMENT_COLUMN
    return [
        *admission_warnings(config),
        *temperature_warnings(config),
        *label_warnings(pool, column, settings.limits),
        *permit_warnings(pool, settings, driver_options(config).max_concurrent_rollouts),
    ]


def temperature_warnings(config: TrainRun) -> list[str]:
    """Entries that sample another distribution than the one whose logprobs the trainer computes."""
    found = []
    for entry in config.environments:
        params = workflow_settings(config, entry, "train").rollout_config.inference_params
        if params.temperature not in (None, 1.0):
            found.append(
                f"environment {entry.label} samples at temperature {params.temperature:g}, the trainer computes "
                "logprobs at 1: importance weights and optim/kl_sample_train_* are off from the first step"
            )
    return found


def open_dispatcher(plan: RunPlan, store: TaskStatsStore) -> Dispatcher:
    """The dispatcher of this start, at the policy version it begins with; adaptive samplers read `store`."""
    config, pool = plan.config, plan.train.pool
    settings, sampling = dispatch_settings(config, plan.train), sampling_settings(config)
    steps_left = max(plan.end_step - plan.start_step, 0)
    view = TaskStatsView(store, lambda: dispatcher.version)
    samplers = build_sampling(sampling, pool, view)
    dispatcher = Dispatcher(pool, samplers, settings, start=plan.start, steps_left=steps_left)
    dispatcher.fingerprint = fingerprint(sampling, pool, admission_settings(config).recorded(tuple(plan.train.played)))
    dispatcher.version = plan.resume.policy_version if plan.resume is not None else 0
    dispatcher.step = plan.start_step
    return dispatcher


def open_gate(plan: RunPlan, store: TaskStatsStore, dispatcher: Dispatcher) -> AdmissionGate | None:
    """The admission rules of this start; None when every group is admitted."""
    if not rule_mode(plan.config):
        return None
    sampling = sampling_settings(plan.config)
    view = TaskStatsView(store, lambda: dispatcher.version)
    return AdmissionGate(admission_settings(plan.config), sampling, entry_infos(sampling, plan.train.pool), view)


def open_starts(config: TrainRun, environments: Environments) -> StartLimit | None:
    """The limit of rollouts that start at once, shared by training and evaluation; None without one."""
    limit = config.train.max_starting_rollouts
    if limit is None:
        return None
    settings = dispatch_settings(config, environments)
    largest = max(settings.size_of(label) for label in environments.played)
    most = driver_options(config).max_concurrent_rollouts
    most += (config.eval.max_concurrent_rollouts or 0) if config.eval.every else 0
    log.info("at most %d rollouts start at once", limit)
    if limit < largest:
        log.warning("train.max_starting_rollouts: %d is below a group of %d, which starts in waves", limit, largest)
    if limit >= most:
        log.info("train.max_starting_rollouts: %d never binds: at most %d rollouts run at once", limit, most)
    budget = config.train.workflow_config.worker_startup_budget_seconds
    return StartLimit(limit, budget + TIMER_EXTRA_SECONDS)
