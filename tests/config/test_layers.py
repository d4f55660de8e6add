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


OVER_ALL = "is not read under train.task_sampler pass_rate, which draws over all entries"
ONE: list[tuple[dict[str, Any], Any, list[str]]] = [
    ({}, {"max_staleness": 3}, ["environments.0.max_staleness: needs train.max_staleness, which it raises"]),
    (
        {"max_staleness": 4},
        {"max_staleness": 3},
        ["environments.0.max_staleness: must be at least train.max_staleness (4); got 3"],
    ),
    (
        {"max_concurrent_rollouts": 9},
        {"workflow_config": {"group_size": 12}},
        ["environments.0.workflow_config.group_size: must be at most train.max_concurrent_rollouts (9); got 12"],
    ),
    (
        {},
        {"eval_overrides": {"workflow_config": {"group_size": 300}}},
        [
            "environments.0.eval_overrides.workflow_config.group_size: must be at most "
            "eval.max_concurrent_rollouts (256); got 300"
        ],
    ),
    (
        {},
        {"workflow_config": {"min_successful_group_size": 9}},
        [
            "environments.0.workflow_config.min_successful_group_size: must be at most group_size (8); got 9 "
            "(laid over group_size 8, min_successful_group_size 1)"
        ],
    ),
    (
        {"workflow_config": {"straggler_timeout_seconds": 5, "straggler_quorum": 6}},
        {"workflow_config": {"group_size": 4}},
        [
            "environments.0.workflow_config.straggler_quorum: must be at most group_size (4); got 6 (laid over "
            "group_size 8, min_successful_group_size 1, straggler_timeout_seconds 5.0, straggler_quorum 6)"
        ],
    ),
    (
        {"workflow_config": {"straggler_timeout_seconds": 5, "straggler_quorum": 6}},
        {"workflow_config": {"straggler_timeout_seconds": None}},
        [
            "environments.0.workflow_config.straggler_quorum: needs straggler_timeout_seconds (laid over "
            "group_size 8, min_successful_group_size 1, straggler_timeout_seconds 5.0, straggler_quorum 6)"
        ],
    ),
    (
        {},
        {"eval_overrides": {"workflow_config": {"min_successful_group_size": 2}}},
        [
            "environments.0.eval_overrides.workflow_config.min_successful_group_size: must be at most group_size (1); "
            "got 2 (laid over group_size 1, min_successful_group_size 1)"
        ],
    ),
    (
        {},
        {"task_sampler": "weighted"},
        ["environments.0.task_sampler: weighted is a sampler of the whole run; set train.task_sampler"],
    ),
    (
        {},
        {"task_sampler": "auto"},
        ["environments.0.task_sampler: auto is a sampler of the whole run; set train.task_sampler"],
    ),
    (
        {},
        {"task_sampler_options": {"a": 1}, "group_admission_options": {"a": 1}},
        [
            "environments.0.task_sampler_options: needs the entry's own task_sampler",
            "environments.0.group_admission_options: needs the entry's own group_admission",
        ],
    ),
    (
        {"task_sampler": "pass_rate"},
        {"weight": 2, "task_sampler": "uniform", "task_sampler_options": {"a": 1}},
        [f"environments.0.{key}: {OVER_ALL}" for key in ("weight", "task_sampler")],
    ),
    (
        {"num_minibatches": 2},
        {"group_admission": "mine:Rule"},
        ["environments.0.group_admission: a rule needs train.num_minibatches: 1"],
    ),
    (
        {"num_minibatches": 2, "group_admission": "informative"},
        {},
        ["train.num_minibatches: must be 1 under group_admission informative; got 2"],
    ),
    (
        {"workflow_config": {"straggler_policies": {"default": {"timeout_seconds": 1, "quorum": 9}}}},
        {},
        [
            "train.workflow_config.straggler_policies.default.quorum: must be at most the group size of default (8); "
            "got 9"
        ],
    ),
    ({}, {"name": "a::b"}, ["environments.0.name: must not contain '::', which divides it from a task id; got 'a::b'"]),
    ({}, {"seed": 1.5}, ["environments.0.seed: must be an integer; got 1.5"]),
    (
        {},
        {"success_threshold": float("inf")},
        ["environments.0.success_threshold: must be a finite number; got Infinity"],
    ),
]
SLOW = {"straggler_policies": {"small": {"timeout_seconds": 1, "quorum": 5}}}
SMALL = {"name": "small", "workflow_config": {"group_size": 4}}
SEVERAL: list[tuple[dict[str, Any], Any, list[str]]] = [
    ({}, [], ["environments: name at least one environment to train on"]),
    (
        {"workflow_config": SLOW},
        [SMALL, {"name": "b"}],
        ["train.workflow_config.straggler_policies.small.quorum: must be at most the group size of small (4); got 5"],
    ),
    (
        {
            "label_by": "topic",
            "workflow_config": {"straggler_policies": {"small": {"timeout_seconds": 1, "quorum": 5}}},
        },
        [SMALL, {"name": "b"}],
        [],
    ),
    (
        {},
        [{"name": "a"}, {"name": "a"}, {}],
        [
            "environments.1.name: 'a' is also the name of environments.0",
            "environments.2.name: each entry of a mixture needs a name",
        ],
    ),
    (
        {},
        [{"name": "a", "weight": 0}, {"name": "b", "weight": True}],
        [
            "environments.0.weight: must be a number above 0, or tasks; got 0",
            "environments.1.weight: must be a number above 0, or tasks; got true",
        ],
    ),
    (
        {},
        [{"name": "a", "weight": 1}, {"name": "b"}],
        ["environments.0.weight: weights are all numbers or all tasks; environments.1 has tasks"],
    ),
    (
        {},
        [
            {"name": "a", "eval_workflow_kwargs": {"filter_errors": True}},
            {"name": "b", "workflow_config": {"filter_errors": False}},
        ],
        [
            "environments.0.eval_workflow_kwargs: needs a workflow class of your own, which is not built yet "
            '(got {"filter_errors": true}); remove the key',
            "environments.1.workflow_config.filter_errors: filter_errors is also in eval_workflow_kwargs; set it once",
        ],
    ),
    (
        {},
        [{"name": "a", "trainer_config": "x:Y"}, {"name": "b", "trainer_config": "x:Z"}],
        ['environments.1.trainer_config: acts on the whole run; environments.0 has another value: "x:Y"'],
    ),
]
CASES = [*((train, [entry], texts) for train, entry, texts in ONE), *SEVERAL]


@pytest.mark.parametrize(("train", "entries", "texts"), CASES)
def test_settings_of_entries_that_do_not_fit_the_run(
    write: Write, train: dict[str, Any], entries: list[Any], texts: list[str]
) -> None:
    path = write({"train": {**MINIMAL["train"], **train}, "environments": entries})
    problems = []
    try:
        load(path)
    except ConfigError as error:
        problems = [problem.rpartition(f" ({path}:")[0] for problem in error.problems]
    assert problems == texts


@pytest.mark.parametrize(
    ("checkpoint", "entry", "text"),
    [
        ({"keep_recovery": 3, "recovery_every": 1}, {}, None),
        (
            {"keep_recovery": 2, "recovery_every": 1},
            {},
            "keep_recovery (2) times recovery_every (1) must exceed the largest staleness bound (2); "
            "set keep_recovery: 3 or recovery_every: 2",
        ),
        (
            {"keep_recovery": 2, "recovery_every": 2},
            {"max_staleness": 5},
            "keep_recovery (2) times recovery_every (2) must exceed the largest staleness bound (5); "
            "set keep_recovery: 3 or recovery_every: 3",
        ),
    ],
)
def test_the_recovery_bound_counts_an_entrys_staleness(
    write: Write, checkpoint: dict[str, int], entry: dict[str, int], text: str | None
) -> None:
    path = write({"train": {**MINIMAL["train"], "max_staleness": 2}, "environments": [entry], "checkpoint": checkpoint})
    if text is None:
        assert load(path).kind == "train"
        return
    with pytest.raises(ConfigError) as caught:
        load(path)
    assert [problem.rpartition(" (")[0] for problem in caught.value.problems] == [f"checkpoint.keep_recovery: {text}"]
