"""Every form that an earlier release took, or that people write by mistake: key, value, remedy."""

from __future__ import annotations

import importlib
import runpy
from typing import Any

import pytest

from platoon.config import ConfigError, load

from .conftest import MINIMAL, Write

GONE = "unknown key; platoon 0.3.0 removed it; use "
LABEL = GONE + "train.label_by"
SUCCESS = GONE + "propagate_root_success"
PERMITS = GONE + "max_concurrent_rollouts (the old value times group_size)"
NONE = 'must be one of step, epoch; got "none"; platoon 0.3.0 removed it; use every: 0'
HOSTED = "unknown key; hosted models only evaluate; write it under inference: in an evaluation config"
MICROBATCH = "unknown key; it acts on microbatches; set train.workflow_config."
POOL = "unknown key; all entries share one pool of workers; set train.workflow_config."
COMMAND = "unknown key; the command sets it; an entry cannot"
OVERRIDES = "unknown key; set workflow_config."
PER_REQUEST = "unknown key; a hosted model takes base_url and api_key_env"
ENTRY, LAID = "environments.0.workflow_config", "environments.0.eval_overrides.workflow_config"
WORKFLOWS = ("train.workflow_config", "eval.workflow_config", ENTRY, LAID)
FORMS: list[tuple[str, object, str]] = [
    *((f"{at}.rollout_config.propogate_root_success", True, SUCCESS) for at in (*WORKFLOWS, "inference.workflow")),
    *((f"{at}.straggler_policy_key", "x", LABEL) for at in WORKFLOWS),
    ("train.rollout_group_key", "x", LABEL),
    ("train.num_concurrent_rollout_workflow_workers", 4, PERMITS),
    ("eval.num_concurrent_rollout_workflow_workers", None, PERMITS),
    ("eval.strategy", "none", NONE),
    ("checkpoint.strategy", "none", NONE),
    ("train.task_order", "random", "unknown key; platoon 0.4.0 removed it; use train.task_sampler"),
    ("environments.0.service_kwargs.cache", "/x", "platoon 0.3.0 removed it; set cache in the site profile"),
    (
        "environments.0.service_kwargs.image_map",
        "/x",
        "platoon 0.3.0 removed it; images are kept below the site profile's cache",
    ),
    (
        "environments.0.service_kwargs.toolchain_root",
        "/x",
        "platoon 0.3.0 removed it; toolchains are kept below the site profile's cache",
    ),
    *((f"{at}.{key}", {}, HOSTED) for at in ("train", "eval") for key in ("hosted", "backend")),
    ("hosted", {}, HOSTED),
    ("backend", "x", HOSTED.replace("write it", "write hosted:")),
    ("train.on_stale", "x", "unknown key; stale groups are dropped beyond train.max_staleness"),
    (
        "train.refill.when_short",
        "x",
        "unknown key; a short batch trains once max_groups_per_step is reached",
    ),
    ("eval.sample_timeout_seconds", 1, "unknown key; train.sample_timeout_seconds applies to evaluations too"),
    ("eval.max_starting_rollouts", 1, "unknown key; train.max_starting_rollouts applies to evaluations too"),
    *((f"{at}.max_starting_rollouts", 1, "unknown key; set train.max_starting_rollouts") for at in WORKFLOWS),
    ("environments.0.eval_overrides.max_steps", 1, f"{OVERRIDES}rollout_config.max_steps below eval_overrides"),
    (
        "environments.0.eval_overrides.inference_params",
        {},
        f"{OVERRIDES}rollout_config.inference_params below eval_overrides",
    ),
    ("environments.0.eval_overrides.group_size", 2, f"{OVERRIDES}group_size below eval_overrides"),
    ("environments.0.eval_overrides.dataset_kwargs", {}, "unknown key; set the entry's eval_dataset_kwargs"),
    *(
        (f"{at}.{key}", None, MICROBATCH + key)
        for at in (ENTRY, LAID)
        for key in ("depth_level_weighting", "depth_level_discount_gamma", "filter_zero_advantage_datums")
    ),
    *(
        (f"{ENTRY}.{key}", None, POOL + key)
        for key in (
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
    ),
    (f"{ENTRY}.straggler_policies", {}, "unknown key; set train.workflow_config.straggler_policies"),
    *((f"{ENTRY}.rollout_config.{key}", None, COMMAND) for key in ("model_name", "train", "output_dir", "return_dict")),
    (f"{ENTRY}.rollout_config.verbose", False, "unknown key; set train.workflow_config.rollout_config.verbose"),
    (f"{ENTRY}.rollout_config.judges", False, "unknown key; set inference.judges"),
    (
        "inference.backend",
        "openai",
        "unknown key; write hosted: {base_url: ..., api_key_env: ...} for a hosted model",
    ),
    *(
        (f"inference.hosted.{key}", "x", PER_REQUEST)
        for key in ("kind", "require_api_key", "headers", "headers_env", "extra_body", "drop_params")
    ),
]


@pytest.mark.parametrize(("key", "value", "text"), FORMS, ids=[form[0] for form in FORMS])
def test_a_removed_or_misplaced_form_names_its_remedy(write: Write, key: str, value: object, text: str) -> None:
    entry = {"service": "harbor", "service_kwargs": {}}
    data: dict[str, Any] = {**MINIMAL, "environments": [entry]}
    if key.startswith("inference"):
        data = {"inference": {"model_name": "m"}, "environments": [entry]}
    with pytest.raises(ConfigError) as caught:
        load(write(data), {key: value})
    assert any(problem.startswith(f"{key}: {text} (override {key}=") for problem in caught.value.problems), (
        caught.value.problems
    )


def test_a_removed_form_names_its_line_in_a_file(write: Write) -> None:
    path = write("train:\n  model_name: m\n  renderer_name: r\n  task_order: random\ncheckpoint: {strategy: none}\n")
    with pytest.raises(ConfigError) as caught:
        load(path)
    assert caught.value.problems == [
        f"train.task_order: unknown key; platoon 0.4.0 removed it; use train.task_sampler ({path}:4)",
        f"checkpoint.strategy: {NONE} ({path}:5)",
    ]


@pytest.mark.parametrize("name", ["PLATOON_HARBOR_CACHE", "PLATOON_TOOLCHAINS"])
def test_a_removed_variable_is_refused_unless_it_is_empty(
    write: Write, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setenv(name, "")
    assert load(write(MINIMAL)).kind == "train"
    monkeypatch.setenv(name, "/x")
    with pytest.raises(ConfigError) as caught:
        load(write(MINIMAL))
    assert caught.value.problems == [
        f"the environment variable {name} is set to /x; platoon 0.3.0 removed it: use cache in the site profile"
    ]


def test_the_restart_wrapper_names_what_replaced_it(capsys: pytest.CaptureFixture[str]) -> None:
    module = "platoon.train.tinker.restart_wrapper"
    with pytest.raises(ImportError, match=r"platoon 0\.3\.0 removed it; set watchdog\.max_restarts"):
        importlib.import_module(module)
    with pytest.raises(SystemExit) as caught:
        runpy.run_module(module, run_name="__main__")
    assert caught.value.code == 78
    assert capsys.readouterr().err.startswith(f"platoon: {module}: platoon 0.3.0 removed it; set watchdog.max_restarts")
