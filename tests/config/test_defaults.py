"""Every key of a configuration with its default, typed by hand: a key or a default changes only on purpose."""

from __future__ import annotations

from typing import Any, get_args, get_origin

from platoon.config import EvalRun, Section, TrainRun, given
from platoon.config.entries import EnvironmentConfig
from platoon.config.rollout import EntryRollout, EntryWorkflow
from platoon.config.schema import members, section_of
from platoon.config.site import SiteProfile

REQUIRED = "required"
INFERENCE_PARAMS = dict.fromkeys(("temperature", "top_p", "top_k", "max_completion_tokens"))
OF_AN_ENTRYS_ROLLOUT: dict[str, Any] = {
    "max_steps": None,
    "timeout": None,
    "step_timeout": 300,
    **{f"inference_params.{key}": value for key, value in INFERENCE_PARAMS.items()},
    "sampling_precedence": "request",
    "extra": {},
    "propagate_root_success": None,
    "skip_subagent_reward_computation": False,
    "enable_subagent_verifiers": True,
}
ROLLOUT: dict[str, Any] = {
    **OF_AN_ENTRYS_ROLLOUT,
    "propagate_root_success": False,
    "model_name": None,
    "train": False,
    "output_dir": "rollout_results",
    "verbose": True,
    "return_dict": False,
    "judges": True,
}
OF_AN_ENTRYS_WORKFLOW: dict[str, Any] = {
    "group_size": 8,
    "leave_one_out_baseline": False,
    "min_successful_group_size": 1,
    "straggler_timeout_seconds": None,
    "straggler_quorum": None,
    "filter_errors": True,
    "filter_message_actions": False,
    "subagent_datum_keep_probability": 1.0,
    "subagent_datum_sampling_seed": 0,
}
WORKFLOW: dict[str, Any] = {
    **OF_AN_ENTRYS_WORKFLOW,
    **{f"rollout_config.{key}": value for key, value in ROLLOUT.items()},
    "depth_level_weighting": False,
    "depth_level_discount_gamma": None,
    "filter_zero_advantage_datums": True,
    "straggler_policies": {},
    "straggler_policies.*.timeout_seconds": REQUIRED,
    "straggler_policies.*.quorum": None,
    "rollout_isolation": "inprocess",
    "worker_start_method": "forkserver",
    "worker_preload": (),
    "worker_startup_budget_seconds": 300.0,
    "worker_finalize_grace_seconds": 120.0,
    "worker_parent_grace_seconds": 60.0,
    "worker_termination_grace_seconds": 10.0,
    "worker_launch_concurrent_groups": 2,
    "worker_rss_soft_limit_bytes": 25769803776,
    "worker_mem_available_floor_bytes": 0,
    "worker_binding_poll_seconds": 5.0,
    "worker_unbounded_rollout_budget_seconds": 86400.0,
    "worker_python_env_isolation": False,
}
EVALUATION = {**WORKFLOW, "group_size": 1, "filter_errors": False, "filter_zero_advantage_datums": False}
OF_AN_ENTRY: dict[str, Any] = {
    **{f"rollout_config.{key}": value for key, value in OF_AN_ENTRYS_ROLLOUT.items()},
    **OF_AN_ENTRYS_WORKFLOW,
}
ENTRY: dict[str, Any] = {
    **dict.fromkeys(("env", "package", "trainer_config", "dataset_loader", "eval_dataset_loader", "task_loader")),
    **dict.fromkeys(("rollout", "eval_rollout", "reward_processor", "name", "task_sampler", "group_admission")),
    **dict.fromkeys(("max_staleness", "service", "harness")),
    "workflow": "group_rollout",
    **{key: {} for key in ("dataset_kwargs", "eval_dataset_kwargs", "workflow_kwargs", "eval_workflow_kwargs")},
    **{key: {} for key in ("task_sampler_options", "group_admission_options", "service_kwargs", "harness_options")},
    "exclude_tasks": (),
    "weight": "tasks",
    **{f"workflow_config.{key}": value for key, value in OF_AN_ENTRY.items()},
    "success_threshold": 1.0,
    "placement": "auto",
    "builtins": "default",
    "on_context_overflow": "grade",
    "on_harness_exit.timeout": "exclude",
    "on_harness_exit.crash": "exclude",
    "seed": 0,
    "program": "single",
    "eval_overrides.harness_options": {},
    **{f"eval_overrides.workflow_config.{key}": value for key, value in OF_AN_ENTRY.items()},
    "agents.max_depth": None,
    "agents.budget": "linear",
    "agents.child_max_steps": 15,
    "agents.child_grading": "none",
    "agents.child_access": "full",
    "agents.verifier.enabled": True,
    "agents.verifier.max_steps": 20,
    "agents.verifier.access": "read_only",
    "agents.fork": None,
    "agents.child_timeout_s": None,
}
TRAIN_SECTION: dict[str, Any] = {
    "model_name": REQUIRED,
    "renderer_name": REQUIRED,
    "renderer_kwargs": {},
    "sample_timeout_seconds": None,
    "context_window_length": None,
    "batch_size": 32,
    "num_epochs": None,
    "max_training_steps": None,
    "num_minibatches": 1,
    "num_microbatches": 1,
    "max_staleness": None,
    "optimizer.learning_rate": 3e-5,
    "optimizer.beta1": 0.9,
    "optimizer.beta2": 0.95,
    "optimizer.eps": 1e-8,
    "optimizer.weight_decay": 0.0,
    "optimizer.grad_clip_norm": 0.0,
    "optimizer.schedule": "constant",
    "optimizer.warmup_steps": 0,
    "optimizer.min_ratio": 0.0,
    "loss_fn": "cispo",
    "loss_fn_config": {"clip_low_threshold": 0.0, "clip_high_threshold": 5.0},
    "loss_reduction": "token_sum",
    "lora_rank": 32,
    **{f"workflow_config.{key}": value for key, value in WORKFLOW.items()},
    "max_concurrent_rollouts": None,
    "permit_release": "rollout",
    "max_starting_rollouts": None,
    "label_by": None,
    "rollout_group_limits": {},
    "task_sampler": None,
    "task_sampler_options": {},
    "group_admission": "all",
    "group_admission_options": {},
    "refill.max_groups_per_step": 3.0,
    "forward_backward_timeout_seconds": 5400.0,
    "optim_step_timeout_seconds": 300.0,
    "sampling_seed": None,
}
TRAINING: dict[str, Any] = {
    **{f"train.{key}": value for key, value in TRAIN_SECTION.items()},
    "log_path": "runs",
    "tinker_base_url": None,
    "orchestration": "auto",
    "eval.every": 0,
    "eval.strategy": None,
    "eval.at_start": False,
    "eval.max_concurrent_rollouts": 256,
    **{f"eval.workflow_config.{key}": value for key, value in EVALUATION.items()},
    **{f"environments.*.{key}": value for key, value in ENTRY.items()},
    "checkpoint.every": 0,
    "checkpoint.strategy": None,
    "checkpoint.load_checkpoint_path": None,
    "checkpoint.recovery_every": None,
    "checkpoint.keep_recovery": None,
    "stats.experiment_name": "platoon_tinker",
    "stats.trial_name": "run",
    "stats.wandb.mode": "online",
    **{f"stats.wandb.{key}": None for key in ("project", "entity", "name", "group", "notes", "api_key", "base_url")},
    "stats.wandb.resume_run_id": None,
    "stats.wandb.tags": (),
    "watchdog.enabled": True,
    "watchdog.timeout_seconds": 600.0,
    "watchdog.exit_code": 2,
    "watchdog.max_restarts": 0,
}
INFERENCE: dict[str, Any] = {
    "model_name": REQUIRED,
    "renderer_name": None,
    "model_path": None,
    "renderer_kwargs": {},
    "sample_timeout_seconds": None,
    "context_window_length": None,
    "output_dir": None,
    "workflow.num_rollouts_per_task": 1,
    "workflow.num_concurrent_workers": 32,
    "workflow.success_threshold": 1.0,
    "workflow.fail_fast": False,
    "workflow.count_timeout_as_failure": False,
    "workflow.use_subprocesses": False,
    "workflow.subprocess_max_workers": None,
    **{f"workflow.rollout_config.{key}": value for key, value in ROLLOUT.items()},
    "resume": True,
    "retry_errored": True,
    "judges": True,
    "hosted": None,
    "hosted.base_url": REQUIRED,
    "hosted.api_key_env": None,
    "hosted.timeout_s": 600.0,
    "hosted.max_retries": 6,
    "hosted.max_concurrent_requests": None,
    "hosted.pricing": None,
    "hosted.pricing.input": REQUIRED,
    "hosted.pricing.output": REQUIRED,
    "hosted.pricing.cached_input": None,
    "hosted.pricing.cache_write": None,
}
EVALUATION_RUN: dict[str, Any] = {
    **{f"inference.{key}": value for key, value in INFERENCE.items()},
    **{f"environments.*.{key}": value for key, value in ENTRY.items()},
    "environments": (),
    "split": "eval",
    "stage": "full",
    "tinker_base_url": None,
    "orchestration": "auto",
}
SITE: dict[str, Any] = {
    **dict.fromkeys(("cache", "runs", "provider")),
    **{f"provider_options.{key}": None for key in ("allow_network_none", "stage_images", "rootfs_layout")},
    **{f"provider_options.{key}": None for key in ("gpu", "scratch_root", "image_cache")},
}


def keys(section: type[Section], made: Section | None, at: str = "") -> dict[str, Any]:
    """Dotted path -> default of every key below a section, read off an instance made of defaults when there is one."""
    found: dict[str, Any] = {}
    for name, field in section.model_fields.items():
        path = f"{at}{name}"
        default = getattr(made, name) if made is not None else field.get_default(call_default_factory=True)
        default = REQUIRED if field.is_required() and made is None else default
        kinds = members(field.annotation)
        inner = section_of(field.annotation)
        items = [section_of(get_args(kind)[-1 if get_origin(kind) is dict else 0]) for kind in kinds if get_args(kind)]
        item = next((one for one in items if one is not None), None)
        if inner is None or default is None:
            found[path] = default
        if inner is not None:
            found |= keys(inner, default if isinstance(default, inner) else None, f"{path}.")
        if item is not None:
            found |= keys(item, None, f"{path}.*.")
            if get_origin(kinds[0]) is tuple and default == (item(),):
                del found[path]
    return found


def shown(found: dict[str, Any]) -> dict[str, str]:
    """Values that 0 == False would confuse, as text."""
    return {path: repr(value) for path, value in found.items()}


def test_every_key_of_a_training_run_has_its_default() -> None:
    built = TrainRun.model_validate({"train": {"model_name": REQUIRED, "renderer_name": REQUIRED}})
    derived = {"max_concurrent_rollouts": 256, "label_by": "_platoon_environment", "task_sampler": "auto"}
    expected = {**TRAINING, **{f"train.{key}": value for key, value in derived.items()}}
    assert shown(keys(TrainRun, built)) == shown(expected)


def test_every_key_of_an_evaluation_has_its_default() -> None:
    built = EvalRun.model_validate({"inference": {"model_name": REQUIRED}})
    assert shown(keys(EvalRun, built)) == shown(EVALUATION_RUN)


def test_every_key_of_a_site_profile_has_its_default() -> None:
    assert keys(SiteProfile, SiteProfile()) == SITE


def test_an_entry_may_set_these_settings_and_gives_none_by_itself() -> None:
    assert set(EntryRollout.model_fields) == {path.split(".")[0] for path in OF_AN_ENTRYS_ROLLOUT}
    assert set(EntryWorkflow.model_fields) == {path.split(".")[0] for path in OF_AN_ENTRY}
    entry = EnvironmentConfig()
    assert given(entry) == given(entry.workflow_config) == given(entry.eval_overrides.workflow_config) == {}
