"""Settings laid over each other, and that nothing laid changes what is below."""

from __future__ import annotations

from typing import Any, Literal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from platoon.config import (
    ConfigError,
    EvalRun,
    TrainRun,
    WorkflowConfig,
    lay,
    load,
    rollout_settings,
    workflow_settings,
)

from .conftest import MINIMAL, Write


def build(**sections: object) -> TrainRun:
    return TrainRun.model_validate({"train": {"model_name": "m", "renderer_name": "r"}, **sections})


def test_evaluation_takes_over_only_what_belongs_to_rollouts() -> None:
    workflow = {
        "group_size": 4,
        "leave_one_out_baseline": True,
        "rollout_config": {"max_steps": 5, "inference_params": {"temperature": 0.5, "top_p": 0.9}},
    }
    train = {"model_name": "m", "renderer_name": "r", "workflow_config": workflow}
    own = {"rollout_config": {"inference_params": {"temperature": 0}}}
    run = TrainRun.model_validate({"train": train, "eval": {"workflow_config": own}})
    evaluation = run.eval.workflow_config
    assert evaluation.group_size == 1
    assert not evaluation.leave_one_out_baseline
    assert not evaluation.filter_errors
    assert not evaluation.filter_zero_advantage_datums
    assert evaluation.rollout_config.max_steps == 5
    assert evaluation.rollout_config.inference_params.temperature == 0
    assert evaluation.rollout_config.inference_params.top_p == 0.9
    absent = TrainRun.model_validate({"train": train})
    assert absent.eval.workflow_config.rollout_config.max_steps == 5


def test_an_entry_lays_its_settings_over_the_runs() -> None:
    entry = {
        "workflow_config": {"group_size": 2, "rollout_config": {"timeout": 9, "max_steps": 3, "extra": {"b": 1}}},
        "eval_overrides": {"workflow_config": {"rollout_config": {"max_steps": None}}},
    }
    workflow = {"straggler_timeout_seconds": 5.0, "rollout_config": {"max_steps": 7, "extra": {"a": 1}}}
    run = build(
        train={"model_name": "m", "renderer_name": "r", "workflow_config": workflow},
        eval={"workflow_config": {"group_size": 3}},
        environments=[entry],
    )
    training = workflow_settings(run, run.environments[0], "train")
    assert (training.group_size, training.straggler_timeout_seconds) == (2, 5.0)
    assert (training.rollout_config.max_steps, training.rollout_config.timeout) == (3, 9)
    assert training.rollout_config.extra == {"b": 1}
    evaluation = workflow_settings(run, run.environments[0], "eval")
    assert (evaluation.group_size, evaluation.straggler_timeout_seconds) == (3, None)
    assert (evaluation.rollout_config.max_steps, evaluation.rollout_config.timeout) == (None, 9)
    assert run.train.workflow_config.rollout_config.max_steps == 7


def test_an_entry_that_sets_nothing_shares_the_runs_settings() -> None:
    run = build()
    assert workflow_settings(run, run.environments[0], "train") is run.train.workflow_config
    assert workflow_settings(run, run.environments[0], "eval") == run.eval.workflow_config


def test_null_replaces_and_absent_does_not() -> None:
    base = WorkflowConfig(straggler_timeout_seconds=5.0)
    assert lay(base, {}).straggler_timeout_seconds == 5.0
    assert lay(base, {"straggler_timeout_seconds": None}).straggler_timeout_seconds is None


ROLLOUTS = st.fixed_dictionaries(
    {},
    optional={"max_steps": st.none() | st.integers(1, 9), "extra": st.dictionaries(st.text(), st.integers())},
)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.fixed_dictionaries(
            {},
            optional={
                "group_size": st.integers(1, 9),
                "filter_errors": st.booleans(),
                "straggler_timeout_seconds": st.none() | st.floats(1, 9),
                "rollout_config": ROLLOUTS,
            },
        ),
        max_size=4,
    )
)
def test_the_last_layer_that_gives_a_key_wins(layers: list[dict[str, Any]]) -> None:
    laid = lay(WorkflowConfig(), *layers)
    for key in ("group_size", "filter_errors", "straggler_timeout_seconds"):
        wanted = next((layer[key] for layer in reversed(layers) if key in layer), getattr(WorkflowConfig(), key))
        assert getattr(laid, key) == wanted
    steps = [layer["rollout_config"] for layer in layers if "max_steps" in layer.get("rollout_config", {})]
    assert laid.rollout_config.max_steps == (steps[-1]["max_steps"] if steps else None)


SAMPLING = st.fixed_dictionaries(
    {}, optional={"temperature": st.none() | st.floats(0, 2), "top_k": st.none() | st.integers(1, 9)}
)
ENTRY_ROLLOUT = st.fixed_dictionaries(
    {},
    optional={
        "max_steps": st.none() | st.integers(1, 9),
        "timeout": st.none() | st.integers(1, 9),
        "extra": st.dictionaries(st.sampled_from("ab"), st.none() | st.integers(), max_size=2),
        "inference_params": SAMPLING,
    },
)
OWN = {"group_size": st.integers(1, 9), "filter_errors": st.booleans(), "leave_one_out_baseline": st.booleans()}
ENTRY_WORKFLOW = st.fixed_dictionaries({}, optional={**OWN, "rollout_config": ENTRY_ROLLOUT})
RUN_WORKFLOW = st.fixed_dictionaries(
    {},
    optional={
        **OWN,
        "filter_zero_advantage_datums": st.booleans(),
        "rollout_config": ENTRY_ROLLOUT,
    },
)
SECTIONS = ("rollout_config", "inference_params")


def flat(layer: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """A layer as dotted paths to the values that replace; `extra` replaces whole."""
    paths: dict[str, Any] = {}
    for key, value in layer.items():
        if key in SECTIONS:
            paths |= flat(value, f"{prefix}{key}.")
        else:
            paths[prefix + key] = value
    return paths


def reference(phase: str, run: Any, entry: Any, evaluation: Any, overrides: Any) -> dict[str, Any]:
    """The settings of an entry, worked out path by path from the documented order of layers."""
    defaults = flat(WorkflowConfig().model_dump())
    training = {**defaults, **flat(run), **flat(entry)}
    if phase == "train":
        return training
    base = {**defaults, "group_size": 1, "filter_errors": False, "filter_zero_advantage_datums": False}
    lent = {path: value for path, value in training.items() if path.startswith(("rollout_config.", "worker_"))}
    return {**base, **lent, **flat(evaluation), **flat(overrides)}


@settings(max_examples=150, deadline=None)
@given(RUN_WORKFLOW, ENTRY_WORKFLOW, RUN_WORKFLOW, ENTRY_WORKFLOW)
def test_laying_equals_working_it_out_path_by_path(run: Any, entry: Any, evaluation: Any, overrides: Any) -> None:
    config = build(
        train={"model_name": "m", "renderer_name": "r", "workflow_config": run, "max_concurrent_rollouts": 99},
        eval={"workflow_config": evaluation},
        environments=[{"workflow_config": entry, "eval_overrides": {"workflow_config": overrides}}],
    )
    before = config.model_dump()
    phases: tuple[Literal["train", "eval"], ...] = ("train", "eval")
    for phase in phases:
        laid = flat(workflow_settings(config, config.environments[0], phase).model_dump())
        assert laid == reference(phase, run, entry, evaluation, overrides)
    assert config.model_dump() == before


def test_models_are_frozen() -> None:
    run = build()
    with pytest.raises(ValidationError):
        run.train.batch_size = 3
    with pytest.raises(ValidationError):
        run.environments[0].seed = 3


def test_an_evaluations_layers() -> None:
    entry = {
        "workflow_config": {"rollout_config": {"max_steps": 1, "timeout": 2}},
        "eval_overrides": {"workflow_config": {"rollout_config": {"timeout": 4}}},
    }
    inference = {
        "model_name": "m",
        "judges": False,
        "workflow": {"rollout_config": {"timeout": 3, "sampling_precedence": "config"}},
    }
    run = EvalRun.model_validate({"inference": inference, "environments": [entry]})
    for split, timeout in (("eval", 4), ("train", 3)):
        laid = rollout_settings(run.inference, run.environments[0], split)
        assert (laid.max_steps, laid.timeout, laid.sampling_precedence, laid.judges) == (1, timeout, "config", False)


@pytest.mark.parametrize(
    ("train", "entry", "reason"),
    [
        ({}, {"max_staleness": 3}, r"needs train\.max_staleness"),
        ({"max_staleness": 4}, {"max_staleness": 3}, r"at least train\.max_staleness \(4\)"),
        ({"max_concurrent_rollouts": 9}, {"workflow_config": {"group_size": 12}}, r"max_concurrent_rollouts \(9\)"),
        ({}, {"workflow_config": {"min_successful_group_size": 9}}, r"laid over group_size 8"),
        ({}, {"workflow_config": {"straggler_quorum": 2}}, "needs straggler_timeout_seconds"),
        ({}, {"workflow_config": {"filter_zero_advantage_datums": True}}, "it acts on microbatches"),
        ({}, {"workflow_config": {"rollout_config": {"verbose": True}}}, r"set train\.workflow_config"),
        ({}, {"task_sampler": "auto"}, "sampler of the whole run"),
        ({}, {"task_sampler_options": {"a": 1}}, "needs the entry's own task_sampler"),
        ({}, {"group_admission_options": {"a": 1}}, "needs the entry's own group_admission"),
        ({"task_sampler": "uniform"}, {"weight": 2}, "draws over all entries"),
        ({"task_sampler": "uniform"}, {"task_sampler": "uniform"}, "draws over all entries"),
        (
            {"workflow_config": {"straggler_policies": {"default": {"timeout_seconds": 1, "quorum": 9}}}},
            {},
            r"straggler_policies\.default\.quorum: must be at most the group size of default \(8\)",
        ),
    ],
)
def test_settings_of_an_entry_that_do_not_fit_the_run(
    write: Write, train: dict[str, object], entry: dict[str, object], reason: str
) -> None:
    path = write({"train": {**MINIMAL["train"], **train}, "environments": [entry]})
    with pytest.raises(ConfigError, match=reason):
        load(path)
