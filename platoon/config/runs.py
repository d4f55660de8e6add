"""The two kinds of configuration file: a training run and an evaluation.

Built in Python or by `load`, both are checked alike: types, rules between keys, settings of every entry laid over the
run's, and keys whose feature is not built yet.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, Field, PrivateAttr, ValidationError

from platoon.config import checks
from platoon.config.base import Directory, Section, Text, given
from platoon.config.entries import EnvironmentConfig
from platoon.config.inference import InferenceConfig
from platoon.config.layers import entry_training_settings, evaluation_settings
from platoon.config.problems import Problem
from platoon.config.rollout import WorkflowConfig
from platoon.config.schema import problems_of
from platoon.config.training import CheckpointConfig, EvalConfig, StatsConfig, TrainConfig, WatchdogConfig
from platoon.config.unbuilt import TABLES, unbuilt_problems

Orchestration = Annotated[
    Literal["auto", "require", "off"],
    BeforeValidator(lambda value: "off" if value is False else value),  # YAML reads off without quotes as false
]
Entries = Annotated[tuple[EnvironmentConfig, ...], Field(strict=False)]
_SERVICE_URL = "must be an http or https URL, or local for the embedded service; got {!r}"


def _service_problems(url: str | None) -> Iterator[Problem]:
    if url is not None and url != "local" and not url.startswith(("http://", "https://")):
        yield Problem(("tinker_base_url",), _SERVICE_URL.format(url))


class TrainRun(Section):
    """A training run. `eval.workflow_config` holds evaluation's effective settings once built."""

    HINTS: ClassVar = {
        "inference": "a file with both train and inference is not read; hosted models and inference only evaluate",
        "hosted": "hosted models only evaluate; write it under inference: in an evaluation config",
        "backend": "hosted models only evaluate; write hosted: under inference: in an evaluation config",
    }

    train: TrainConfig
    log_path: Directory = "runs"
    tinker_base_url: Text | None = None
    eval: EvalConfig = EvalConfig()
    environments: Entries = (EnvironmentConfig(),)
    checkpoint: CheckpointConfig = CheckpointConfig()
    stats: StatsConfig = StatsConfig()
    watchdog: WatchdogConfig = WatchdogConfig()
    orchestration: Orchestration = "auto"

    _eval_layer: dict[str, Any] = PrivateAttr(default_factory=dict)

    def complete(self) -> Iterator[Problem]:
        layer = given(self.eval).get("workflow_config") or {}
        self._eval_layer = layer
        yield from unbuilt_problems(self, TABLES["train"])
        yield from _service_problems(self.tinker_base_url)
        try:
            effective = evaluation_settings(self.train.workflow_config, layer)
        except ValidationError as error:
            for problem in problems_of(error, WorkflowConfig):
                also = (("train", "workflow_config", "rollout_isolation"),)
                yield Problem(("eval", "workflow_config", *problem.path), problem.text, also)
            return
        self.derive(eval=self.eval.model_copy(update={"workflow_config": effective}))
        yield from checks.entry_list(self.environments)
        yield from checks.training_run(self)

    @property
    def eval_layer(self) -> dict[str, Any]:
        """The keys that `eval.workflow_config` gave, without what training lends it."""
        return self._eval_layer


class EvalRun(Section):
    """An evaluation of one policy."""

    HINTS: ClassVar = {"train": "a file with inference is an evaluation config; move train to a file of its own"}

    inference: InferenceConfig
    environments: Entries = ()
    split: Text = "eval"
    stage: Literal["full", "rollouts", "report"] = "full"
    tinker_base_url: Text | None = None
    orchestration: Orchestration = "auto"

    def complete(self) -> Iterator[Problem]:
        yield from unbuilt_problems(self, TABLES["eval"])
        yield from _service_problems(self.tinker_base_url)
        yield from checks.entry_list(self.environments)
        if self.stage == "report" and self.inference.output_dir is None:
            yield Problem(("stage",), "report needs inference.output_dir", (("inference", "output_dir"),))


PlatoonTinkerRLTrainerConfig = TrainRun
PlatoonEvalConfig = EvalRun


def run_directory(config: TrainRun) -> Path:
    """log_path/experiment_name/trial_name, absolute; a relative log_path is below the working directory."""
    root = Path(os.path.expanduser(config.log_path)).absolute()
    return root / config.stats.experiment_name / config.stats.trial_name


def workflow_settings(config: TrainRun, entry: EnvironmentConfig, phase: Literal["train", "eval"]) -> WorkflowConfig:
    """The settings of an entry's groups in a phase, all layers laid. Layers, lowest first: the run's settings (for
    evaluation: its defaults, then what the entry's training settings lend it, then `eval.workflow_config`), then the
    entry's own."""
    training = entry_training_settings(config.train.workflow_config, entry)
    if phase == "train":
        return training
    return evaluation_settings(training, config.eval_layer, given(entry.eval_overrides.workflow_config))
