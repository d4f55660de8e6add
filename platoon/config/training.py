"""The sections of a training run: `train`, `eval`, `checkpoint`, `stats`, `watchdog`."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from platoon.config.base import (
    Count,
    CountOrZero,
    Fraction,
    NotNegative,
    Number,
    NumericMap,
    Positive,
    Section,
    Text,
    Texts,
)
from platoon.config.problems import Problem
from platoon.config.rollout import EVALUATION_DEFAULTS, WorkflowConfig, WorkflowLayer

LABEL_COLUMN = "_platoon_environment"
INTERRUPT_CODES = (130, 143)
_WORKERS_REMOVED = "platoon 0.3.0 removed it; use max_concurrent_rollouts (the old value times group_size)"
_HOSTED_EVALUATES = "hosted models only evaluate; write it under inference: in an evaluation config"


class AdamParams(Section):
    """The optimizer: Adam, and how its learning rate moves over the run's updates."""

    learning_rate: NotNegative = 3e-5
    beta1: Fraction = 0.9
    beta2: Fraction = 0.95
    eps: NotNegative = 1e-8
    weight_decay: NotNegative = 0.0
    grad_clip_norm: NotNegative = 0.0
    schedule: Literal["constant", "linear", "cosine"] = "constant"
    warmup_steps: CountOrZero = 0
    min_ratio: Fraction = 0.0


class RefillConfig(Section):
    """How many groups a step may ask for under an admission rule, as a multiple of `batch_size`."""

    HINTS: ClassVar = {"when_short": "a short batch trains once max_groups_per_step is reached"}

    max_groups_per_step: Annotated[Number, Field(ge=1)] = 3.0


class TrainConfig(Section):
    """What is trained, on how much, and how far rollouts may run ahead."""

    HINTS: ClassVar = {
        "rollout_group_key": "platoon 0.3.0 removed it; use train.label_by",
        "num_concurrent_rollout_workflow_workers": _WORKERS_REMOVED,
        "task_order": "platoon 0.4.0 removed it; use train.task_sampler",
        "on_stale": "stale groups are dropped beyond train.max_staleness",
        "hosted": _HOSTED_EVALUATES,
        "backend": _HOSTED_EVALUATES,
    }

    model_name: Text
    renderer_name: Text
    renderer_kwargs: dict[str, Any] = Field(default_factory=dict)
    sample_timeout_seconds: Positive | None = None
    context_window_length: Count | None = None
    batch_size: Count = 32
    num_epochs: Count | None = None
    max_training_steps: Count | None = None
    num_minibatches: Count = 1
    num_microbatches: Count = 1
    max_staleness: CountOrZero | None = None
    optimizer: AdamParams = AdamParams()
    loss_fn: Text = "cispo"
    loss_fn_config: NumericMap = Field(default_factory=lambda: {"clip_low_threshold": 0.0, "clip_high_threshold": 5.0})
    loss_reduction: Literal["token_sum", "sequence_mean"] = "token_sum"
    lora_rank: Count = 32
    workflow_config: WorkflowConfig = WorkflowConfig()
    max_concurrent_rollouts: Count | None = None
    permit_release: Literal["group", "rollout"] = "rollout"
    max_starting_rollouts: Count | None = None
    label_by: Text | None = None
    rollout_group_limits: dict[Text, Count] = Field(default_factory=dict)
    task_sampler: Text | None = None
    task_sampler_options: NumericMap = Field(default_factory=dict)
    group_admission: Text = "all"
    group_admission_options: NumericMap = Field(default_factory=dict)
    refill: RefillConfig = RefillConfig()
    forward_backward_timeout_seconds: Positive = 5400.0
    optim_step_timeout_seconds: Positive = 300.0
    sampling_seed: int | None = None

    def complete(self) -> Iterator[Problem]:
        group_size = self.workflow_config.group_size
        if self.max_concurrent_rollouts is None:
            self.derive(max_concurrent_rollouts=self.batch_size * group_size)
        elif self.max_concurrent_rollouts < group_size:
            text = f"must be at least group_size ({group_size}); got {self.max_concurrent_rollouts}"
            yield Problem(("max_concurrent_rollouts",), text, (("workflow_config", "group_size"),))
        self.derive(label_by=self.label_by or LABEL_COLUMN, task_sampler=self.task_sampler or "auto")
        yield from self._batch_splits()

    def _batch_splits(self) -> Iterator[Problem]:
        size, minis, micros = self.batch_size, self.num_minibatches, self.num_microbatches
        if size % minis:
            text = f"must divide batch_size ({size}); got {minis}"
            yield Problem(("num_minibatches",), text, (("batch_size",),))
        elif (size // minis) % micros:
            text = f"must divide batch_size / num_minibatches ({size // minis}); got {micros}"
            yield Problem(("num_microbatches",), text, (("batch_size",), ("num_minibatches",)))
        if self.group_admission != "all" and minis > 1:
            text = f"must be 1 under group_admission {self.group_admission}; got {minis}"
            yield Problem(("num_minibatches",), text, (("group_admission",),))

    @property
    def groups_per_step_cap(self) -> int:
        """How many groups one step may ask for under an admission rule."""
        return max(self.batch_size, math.ceil(round(self.refill.max_groups_per_step * self.batch_size, 9)))


class Cadence(Section):
    """Something done `every` so many steps or epochs; 0 is never. `every` defaults to 1 when `strategy` is set."""

    VALUE_HINTS: ClassVar = {"strategy": {"none": "platoon 0.3.0 removed it; use every: 0"}}

    every: CountOrZero | None = None
    strategy: Literal["step", "epoch"] | None = None

    def complete(self) -> Iterator[Problem]:
        if self.every is None:
            self.derive(every=0 if self.strategy is None else 1)
        yield from ()

    def interval(self, steps_per_epoch: int) -> int:
        """Steps between two of them; 0 is never."""
        return (self.every or 0) * (steps_per_epoch if self.strategy == "epoch" else 1)


class EvalConfig(Cadence):
    """Evaluation during training. `workflow_config` holds the keys given here over what training uses."""

    HINTS: ClassVar = {
        "num_concurrent_rollout_workflow_workers": _WORKERS_REMOVED,
        "sample_timeout_seconds": "train.sample_timeout_seconds applies to evaluations too",
        "max_starting_rollouts": "train.max_starting_rollouts applies to evaluations too",
        "hosted": _HOSTED_EVALUATES,
        "backend": _HOSTED_EVALUATES,
    }

    at_start: bool = False
    max_concurrent_rollouts: Count | None = None
    workflow_config: WorkflowLayer = WorkflowConfig(**EVALUATION_DEFAULTS)

    def complete(self) -> Iterator[Problem]:
        yield from super().complete()
        if self.max_concurrent_rollouts is None:
            self.derive(max_concurrent_rollouts=256)


class CheckpointConfig(Cadence):
    """Permanent checkpoints by cadence, recovery checkpoints every `recovery_every` steps, the newest kept."""

    load_checkpoint_path: Text | None = None
    recovery_every: Count | None = None
    keep_recovery: Count | None = None

    def complete(self) -> Iterator[Problem]:
        yield from super().complete()
        path = self.load_checkpoint_path
        if path is not None and not path.startswith("tinker://"):
            yield Problem(("load_checkpoint_path",), f"must be a tinker:// path of saved weights; got {path!r}")


class WandbConfig(Section):
    """Weights & Biases. `mode: disabled` turns it off. The key is never written anywhere."""

    mode: Literal["online", "offline", "disabled", "shared"] = "online"
    project: str | None = None
    entity: str | None = None
    name: str | None = None
    group: str | None = None
    tags: Texts = ()
    notes: str | None = None
    api_key: str | None = Field(default=None, repr=False)
    base_url: str | None = None
    resume_run_id: str | None = None


class StatsConfig(Section):
    """Where the run's records go: the run directory is log_path/experiment_name/trial_name."""

    experiment_name: Text = "platoon_tinker"
    trial_name: Text = "run"
    wandb: WandbConfig = WandbConfig()

    def complete(self) -> Iterator[Problem]:
        for key in ("experiment_name", "trial_name"):
            name = getattr(self, key)
            if name.startswith("/") or {".", ".."} & set(name.split("/")) or "\0" in name:
                yield Problem((key,), f"names a directory below log_path; got {name!r}")


class WatchdogConfig(Section):
    """Ends a process that makes no progress for `timeout_seconds` with `exit_code`."""

    enabled: bool = True
    timeout_seconds: Positive = 600.0
    exit_code: int = 2
    max_restarts: CountOrZero = 0

    def complete(self) -> Iterator[Problem]:
        if not 0 <= self.exit_code <= 255:
            yield Problem(("exit_code",), f"must be between 0 and 255; got {self.exit_code}")
        elif self.enabled and self.max_restarts > 0 and self.exit_code in (0, 78, *INTERRUPT_CODES):
            text = f"must not be 0, 78, 130 or 143 with max_restarts: those are never restarted; got {self.exit_code}"
            yield Problem(("exit_code",), text, (("max_restarts",), ("enabled",)))
