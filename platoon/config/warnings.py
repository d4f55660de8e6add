"""What loads but probably does not do what its writer meant."""

from __future__ import annotations

from collections.abc import Iterator

from platoon.config.base import given
from platoon.config.effective import effective_settings, not_applied
from platoon.config.runs import EvalRun, TrainRun
from platoon.config.training import LABEL_COLUMN


def load_warnings(config: TrainRun | EvalRun) -> list[str]:
    """One line a doubt, each starting with the dotted path it is about."""
    return list(_evaluation(config) if isinstance(config, EvalRun) else _training(config))


def _training(config: TrainRun) -> Iterator[str]:
    for section in ("train", "eval"):
        workflow = given(config.train.workflow_config) if section == "train" else config.eval_layer
        if "output_dir" in (workflow.get("rollout_config") or {}):
            yield f"{section}.workflow_config.rollout_config.output_dir: not used; the run directory is"
    if config.eval.at_start and not config.eval.every:
        yield "eval.at_start: not used; eval.every is 0, so nothing is evaluated"
    for index, entry in enumerate(config.environments):
        at = f"environments.{index}"
        if given(entry.workflow_config).get("group_size") == 1:
            yield f"{at}.workflow_config.group_size: a group of 1 has no baseline; its rollouts never train"
        limited = config.train.label_by != LABEL_COLUMN or entry.label in config.train.rollout_group_limits
        if entry.max_staleness not in (None, config.train.max_staleness) and not limited:
            text = f"without a limit train.rollout_group_limits.{entry.label} its old groups can fill all permits"
            yield f"{at}.max_staleness: {text}"
        if not config.eval.every:
            continue
        for setting in effective_settings(config, entry, "eval"):
            if setting.source == "eval.workflow_config" and (setting.below or ("",))[0] == "entry, inherited":
                yield f"{at}.workflow_config.{setting.path}: evaluation uses {setting.value!r} of eval.workflow_config"


def _evaluation(config: EvalRun) -> Iterator[str]:
    if "output_dir" in given(config.inference.workflow.rollout_config):
        yield "inference.workflow.rollout_config.output_dir: not used; inference.output_dir is"
    for index, entry in enumerate(config.environments):
        for path in not_applied(config, entry):
            yield f"environments.{index}.{path}: not applied by an evaluation"
