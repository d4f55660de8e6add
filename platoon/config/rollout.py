"""How rollouts and groups are made: `rollout_config` and `workflow_config`.

An entry may set the subset that `EntryRollout` and `EntryWorkflow` hold; `WorkflowLayer` has every key and checks
nothing between them, since a layer is judged only after it is laid over the one below (`WorkflowConfig`).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar, Literal

from pydantic import Field

from platoon.config.base import Count, CountOrZero, Fraction, NotNegative, Positive, Section, Text, Texts
from platoon.config.problems import Problem

_RENAMED_SUCCESS = {"propogate_root_success": "platoon 0.3.0 removed it; use propagate_root_success"}
_STRAGGLER_KEY = {"straggler_policy_key": "platoon 0.3.0 removed it; use train.label_by"}
_STARTING = {"max_starting_rollouts": "set train.max_starting_rollouts"}
_RUNS_OWN = "the command sets it; an entry cannot"


class InferenceParams(Section):
    """Sampling parameters; null takes the gateway's default (1.0, 1.0, -1, 4096)."""

    temperature: NotNegative | None = None
    top_p: Fraction | None = None
    top_k: int | None = None
    max_completion_tokens: Count | None = None


class EntryRollout(Section):
    """The part of `rollout_config` that an environment entry may set. Times in seconds."""

    HINTS: ClassVar = {
        **_RENAMED_SUCCESS,
        **dict.fromkeys(("model_name", "train", "output_dir", "return_dict"), _RUNS_OWN),
        "verbose": "set train.workflow_config.rollout_config.verbose",
        "judges": "set inference.judges",
    }

    max_steps: Count | None = None
    timeout: Count | None = None
    step_timeout: Count = 300
    inference_params: InferenceParams = InferenceParams()
    sampling_precedence: Literal["request", "config"] = "request"
    extra: dict[str, Any] = Field(default_factory=dict)
    propagate_root_success: bool | None = None
    skip_subagent_reward_computation: bool = False
    enable_subagent_verifiers: bool = True


class RolloutConfig(EntryRollout):
    """Limits and sampling of one rollout."""

    HINTS: ClassVar = _RENAMED_SUCCESS

    model_name: str | None = None
    train: bool = False
    output_dir: str = "rollout_results"
    verbose: bool = True
    return_dict: bool = False
    judges: bool = True

    def complete(self) -> Iterator[Problem]:
        if self.propagate_root_success is None:
            self.derive(propagate_root_success=False)
        yield from ()


class StragglerPolicy(Section):
    """When a group stops waiting for its slowest members: `quorum` done and `timeout_seconds` passed (null: never)."""

    timeout_seconds: Positive | None
    quorum: Count | None = None

    def complete(self) -> Iterator[Problem]:
        if self.quorum is not None and self.timeout_seconds is None:
            yield Problem(("quorum",), "needs timeout_seconds", (("timeout_seconds",),))


_MICROBATCH = "it acts on microbatches; set train.workflow_config.{}"
_POOL = "all entries share one pool of workers; set train.workflow_config.{}"
_WORKER_KEYS = (
    "rollout_isolation",
    "worker_start_method",
    "worker_preload",
    "worker_startup_budget_seconds",
    "worker_finalize_grace_seconds",
    "worker_parent_grace_seconds",
    "worker_termination_grace_seconds",
    "worker_launch_concurrent_groups",
    "worker_rss_soft_limit_bytes",
    "worker_mem_available_floor_bytes",
    "worker_binding_poll_seconds",
    "worker_unbounded_rollout_budget_seconds",
    "worker_python_env_isolation",
)
INHERITED_BY_EVALUATION = ("rollout_config", *_WORKER_KEYS)


class EntryWorkflow(Section):
    """The part of `workflow_config` that an environment entry may set."""

    HINTS: ClassVar = {
        **_STRAGGLER_KEY,
        **_STARTING,
        **{
            key: _MICROBATCH.format(key)
            for key in ("depth_level_weighting", "depth_level_discount_gamma", "filter_zero_advantage_datums")
        },
        **{key: _POOL.format(key) for key in _WORKER_KEYS},
        "straggler_policies": "set train.workflow_config.straggler_policies",
    }

    group_size: Count = 8
    rollout_config: EntryRollout = EntryRollout()
    leave_one_out_baseline: bool = False
    min_successful_group_size: Count = 1
    straggler_timeout_seconds: Positive | None = None
    straggler_quorum: Count | None = None
    filter_errors: bool = True
    filter_message_actions: bool = False
    subagent_datum_keep_probability: Fraction = 1.0
    subagent_datum_sampling_seed: int = 0


class WorkflowLayer(EntryWorkflow):
    """Every key of `workflow_config`, each checked on its own."""

    HINTS: ClassVar = {**_STRAGGLER_KEY, **_STARTING}

    rollout_config: RolloutConfig = RolloutConfig()
    depth_level_weighting: bool = False
    depth_level_discount_gamma: Positive | None = None
    filter_zero_advantage_datums: bool = True
    straggler_policies: dict[Text, StragglerPolicy] = Field(default_factory=dict)
    rollout_isolation: Literal["inprocess", "process"] = "inprocess"
    worker_start_method: Literal["forkserver", "exec"] = "forkserver"
    worker_preload: Texts = ()
    worker_startup_budget_seconds: NotNegative = 300.0
    worker_finalize_grace_seconds: NotNegative = 120.0
    worker_parent_grace_seconds: NotNegative = 60.0
    worker_termination_grace_seconds: NotNegative = 10.0
    worker_launch_concurrent_groups: Count = 2
    worker_rss_soft_limit_bytes: CountOrZero = 24 * 1024**3
    worker_mem_available_floor_bytes: CountOrZero = 0
    worker_binding_poll_seconds: NotNegative = 5.0
    worker_unbounded_rollout_budget_seconds: NotNegative = 86400.0
    worker_python_env_isolation: bool = False


class WorkflowConfig(WorkflowLayer):
    """How a group of rollouts is made, cut off and turned into datums."""

    def complete(self) -> Iterator[Problem]:
        size = ("group_size",)
        if self.straggler_quorum is not None:
            if self.straggler_timeout_seconds is None:
                yield Problem(
                    ("straggler_quorum",), "needs straggler_timeout_seconds", (("straggler_timeout_seconds",),)
                )
            if self.straggler_quorum > self.group_size:
                text = f"must be at most group_size ({self.group_size}); got {self.straggler_quorum}"
                yield Problem(("straggler_quorum",), text, (size,))
        if self.min_successful_group_size > self.group_size:
            text = f"must be at most group_size ({self.group_size}); got {self.min_successful_group_size}"
            yield Problem(("min_successful_group_size",), text, (size,))
        if self.depth_level_weighting and self.depth_level_discount_gamma is not None:
            text = "excludes depth_level_discount_gamma; set one of the two"
            yield Problem(("depth_level_weighting",), text, (("depth_level_discount_gamma",),))
        if self.worker_python_env_isolation and self.rollout_isolation != "process":
            text = "needs rollout_isolation: process"
            yield Problem(("worker_python_env_isolation",), text, (("rollout_isolation",),))
        for index, name in enumerate(self.worker_preload):
            if not all(part.isidentifier() for part in name.split(".")):
                yield Problem(("worker_preload", index), f"must be a module name such as a.b.c; got {name!r}")


EVALUATION_DEFAULTS: dict[str, Any] = {"group_size": 1, "filter_errors": False, "filter_zero_advantage_datums": False}
