"""Rules between sections of a configuration: what no section can see alone.

Each function yields problems and changes nothing. What needs the listed tasks is checked when they are listed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from platoon.config.base import given
from platoon.config.entries import EnvironmentConfig
from platoon.config.layers import entry_training_settings, evaluation_settings
from platoon.config.problems import KeyPath, Problem, show
from platoon.config.rollout import WorkflowConfig
from platoon.config.schema import problems_of
from platoon.config.training import LABEL_COLUMN

if TYPE_CHECKING:
    from platoon.config.runs import TrainRun

_RUN_LEVEL: dict[str, Any] = {
    "trainer_config": None,
    "workflow": "group_rollout",
    "workflow_kwargs": {},
    "eval_workflow_kwargs": {},
}
_RELATED = ("group_size", "min_successful_group_size", "straggler_timeout_seconds", "straggler_quorum")


def entry_list(entries: Sequence[EnvironmentConfig]) -> Iterator[Problem]:
    """Rules of a mixture: names, weights, keys that act on the whole run."""
    if len(entries) < 2:
        return
    seen: dict[str, int] = {}
    for index, entry in enumerate(entries):
        path: KeyPath = ("environments", index, "name")
        if entry.name is None:
            yield Problem(path, "each entry of a mixture needs a name")
        elif entry.name in seen:
            text = f"{entry.name!r} is also the name of environments.{seen[entry.name]}"
            yield Problem(path, text, (("environments", seen[entry.name], "name"),))
        else:
            seen[entry.name] = index
    numeric = [index for index, entry in enumerate(entries) if entry.weight != "tasks"]
    if numeric and len(numeric) < len(entries):
        others = [index for index, entry in enumerate(entries) if entry.weight == "tasks"]
        text = f"weights are all numbers or all tasks; environments.{others[0]} has tasks"
        yield Problem(("environments", numeric[0], "weight"), text, (("environments", others[0], "weight"),))
    for key, default in _RUN_LEVEL.items():
        set_by = [(index, getattr(entry, key)) for index, entry in enumerate(entries) if getattr(entry, key) != default]
        for index, value in set_by[1:]:
            if value != set_by[0][1]:
                text = f"acts on the whole run; environments.{set_by[0][0]} has another value: {show(set_by[0][1])}"
                yield Problem(("environments", index, key), text, (("environments", set_by[0][0], key),))


def training_run(config: TrainRun) -> Iterator[Problem]:
    """Rules between `train`, `eval`, `checkpoint` and the entries."""
    if not config.environments:
        yield Problem(("environments",), "name at least one environment to train on")
    yield from _samplers(config)
    yield from _recovery(config)
    yield from _eval_permits(config)
    for index, entry in enumerate(config.environments):
        yield from _entry(config, entry, ("environments", index))


def _samplers(config: TrainRun) -> Iterator[Problem]:
    train = config.train
    if train.task_sampler in ("auto", "weighted", "uniform") and train.task_sampler_options:
        yield Problem(("train", "task_sampler_options"), f"the sampler {train.task_sampler} takes no options")
    if train.group_admission == "all" and train.group_admission_options:
        yield Problem(("train", "group_admission_options"), "the rule all takes no options")
    for index, entry in enumerate(config.environments):
        if train.task_sampler in ("uniform", "pass_rate"):
            for key, is_set in (("weight", entry.weight != "tasks"), ("task_sampler", entry.task_sampler is not None)):
                if is_set:
                    text = f"is not read under train.task_sampler {train.task_sampler}, which draws over all entries"
                    yield Problem(("environments", index, key), text, (("train", "task_sampler"),))
        if entry.group_admission not in (None, "all") and train.num_minibatches > 1:
            text = "a rule needs train.num_minibatches: 1"
            yield Problem(("environments", index, "group_admission"), text, (("train", "num_minibatches"),))


def _recovery(config: TrainRun) -> Iterator[Problem]:
    keep, every = config.checkpoint.keep_recovery, config.checkpoint.recovery_every
    if keep is None:
        return
    run_bound = config.train.max_staleness
    path: KeyPath = ("checkpoint", "keep_recovery")
    if run_bound is None:
        yield Problem(path, "needs train.max_staleness", (("train", "max_staleness"),))
        return
    bound = max([run_bound, *(entry.max_staleness or 0 for entry in config.environments)])
    if every is not None and keep * every <= bound:
        text = (
            f"keep_recovery ({keep}) times recovery_every ({every}) must exceed the largest staleness bound ({bound}); "
            f"set keep_recovery: {bound // every + 1} or recovery_every: {bound // keep + 1}"
        )
        yield Problem(path, text, (("checkpoint", "recovery_every"), ("train", "max_staleness"), ("environments",)))


def _eval_permits(config: TrainRun) -> Iterator[Problem]:
    size, limit = config.eval.workflow_config.group_size, config.eval.max_concurrent_rollouts
    if limit is None or limit >= size:
        return
    keys: tuple[KeyPath, KeyPath] = ("eval", "max_concurrent_rollouts"), ("eval", "workflow_config", "group_size")
    if "max_concurrent_rollouts" in config.eval.model_fields_set:
        yield Problem(keys[0], f"must be at least the evaluation's group_size ({size}); got {limit}", keys[1:])
    else:
        yield Problem(keys[1], f"must be at most eval.max_concurrent_rollouts ({limit}); got {size}", keys[:1])


def _entry(config: TrainRun, entry: EnvironmentConfig, at: KeyPath) -> Iterator[Problem]:
    run_bound = config.train.max_staleness
    if entry.max_staleness is not None:
        also = (("train", "max_staleness"),)
        if run_bound is None:
            yield Problem((*at, "max_staleness"), "needs train.max_staleness, which it raises", also)
        elif entry.max_staleness < run_bound:
            text = f"must be at least train.max_staleness ({run_bound}); got {entry.max_staleness}"
            yield Problem((*at, "max_staleness"), text, also)
    for key in ("workflow_kwargs", "eval_workflow_kwargs"):
        own = "filter_errors" in given(entry.workflow_config)
        if own and any("filter_errors" in getattr(other, key) for other in config.environments):
            text = f"filter_errors is also in {key}; set it once"
            yield Problem((*at, "workflow_config", "filter_errors"), text, ((*at, key),))
    try:
        training = entry_training_settings(config.train.workflow_config, entry)
    except ValidationError as error:
        yield from _laid(error, config.train.workflow_config, (*at, "workflow_config"), ("train", "workflow_config"))
        return
    yield from _permits(config.train.max_concurrent_rollouts, training, entry, at, "train")
    yield from _label_quorum(config, training, entry, at)
    own_eval = given(entry.eval_overrides.workflow_config)
    try:
        evaluation = evaluation_settings(training, config.eval_layer, own_eval)
    except ValidationError as error:
        below = evaluation_settings(training, config.eval_layer)
        yield from _laid(error, below, (*at, "eval_overrides", "workflow_config"), ("eval", "workflow_config"))
        return
    yield from _permits(config.eval.max_concurrent_rollouts, evaluation, entry, at, "eval")


def _laid(error: ValidationError, below: WorkflowConfig, at: KeyPath, run: KeyPath) -> Iterator[Problem]:
    kept = ", ".join(f"{key} {getattr(below, key)}" for key in _RELATED if getattr(below, key) is not None)
    for problem in problems_of(error, WorkflowConfig):
        also = (*(at + path for path in problem.also), run)
        yield Problem(at + problem.path, f"{problem.text} (laid over {kept})", also)


def _permits(
    limit: int | None, own: WorkflowConfig, entry: EnvironmentConfig, at: KeyPath, phase: str
) -> Iterator[Problem]:
    if limit is not None and entry.sets_workflow and own.group_size > limit:
        path = ("eval_overrides", "workflow_config") if phase == "eval" else ("workflow_config",)
        text = f"must be at most {phase}.max_concurrent_rollouts ({limit}); got {own.group_size}"
        yield Problem((*at, *path, "group_size"), text, ((phase, "max_concurrent_rollouts"),))


def _label_quorum(config: TrainRun, own: WorkflowConfig, entry: EnvironmentConfig, at: KeyPath) -> Iterator[Problem]:
    policy = config.train.workflow_config.straggler_policies.get(entry.label)
    if config.train.label_by != LABEL_COLUMN or policy is None or policy.quorum is None:
        return
    if policy.quorum > own.group_size:
        path = ("train", "workflow_config", "straggler_policies", entry.label, "quorum")
        text = f"must be at most the group size of {entry.label} ({own.group_size}); got {policy.quorum}"
        yield Problem(path, text, ((*at, "workflow_config", "group_size"),))
