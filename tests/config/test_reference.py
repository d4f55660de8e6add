"""The reference page, and what `config show` says of an entry."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from platoon.config import EvalRun, TrainRun, load, workflow_settings
from platoon.config.effective import effective_settings, entry_settings, sets_anything
from platoon.config.reference import reference
from platoon.config.warnings import load_warnings

from .conftest import MINIMAL, Write

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "config.md"
ENTRY = {"name": "a", "max_staleness": 3, "workflow_config": {"group_size": 1, "rollout_config": {"max_steps": 5}}}
RUN: dict[str, Any] = {
    "train": {
        **MINIMAL["train"],
        "max_staleness": 2,
        "workflow_config": {"group_size": 4, "rollout_config": {"max_steps": 9, "timeout": 8}},
    },
    "eval": {"every": 1, "workflow_config": {"rollout_config": {"max_steps": 3}}},
    "environments": [ENTRY, {"name": "b"}],
}


def test_the_page_is_current() -> None:
    assert PAGE.read_text(encoding="utf-8") == reference(), (
        "run: python -m platoon.config.reference docs/reference/config.md"
    )


def test_every_setting_of_an_entry_names_its_source(write: Write) -> None:
    run = load(write(RUN)).train_config
    first, second = run.environments
    training = {setting.path: setting for setting in effective_settings(run, first, "train")}
    steps, size = training["rollout_config.max_steps"], training["group_size"]
    assert (steps.value, steps.source, steps.below) == (5, "entry", ("train.workflow_config", 9))
    assert (size.value, size.source, size.below) == (1, "entry", ("train.workflow_config", 4))
    assert training["rollout_config.timeout"].source == "train.workflow_config"
    assert (training["filter_errors"].value, training["filter_errors"].source) == (True, "default")
    assert training["max_staleness"].below == ("train.max_staleness", 2)
    evaluation = {setting.path: setting for setting in effective_settings(run, first, "eval")}
    steps = evaluation["rollout_config.max_steps"]
    assert (steps.value, steps.source, steps.below) == (3, "eval.workflow_config", ("entry, inherited", 5))
    assert evaluation["rollout_config.timeout"].source == "train.workflow_config, inherited"
    assert (evaluation["filter_errors"].value, evaluation["filter_errors"].source) == (False, "default")
    for entry in (first, second):
        laid = workflow_settings(run, entry, "eval")
        for setting in effective_settings(run, entry, "eval"):
            found: object = laid
            for part in setting.path.split("."):
                found = getattr(found, part)
            assert found == setting.value, setting.path
    assert sets_anything(first)
    assert not sets_anything(second)
    assert entry_settings(run) == {"a": {"train": {"group_size": 1, "rollout_config.max_steps": 5}, "max_staleness": 3}}


def test_an_evaluations_settings_name_their_source() -> None:
    entry = {
        "workflow_config": {"rollout_config": {"max_steps": 1, "timeout": 2}},
        "eval_overrides": {"workflow_config": {"rollout_config": {"timeout": 4}}},
    }
    inference = {"model_name": "m", "workflow": {"rollout_config": {"timeout": 3}}}
    run = EvalRun.model_validate({"inference": inference, "environments": [entry]})
    settings = {setting.path: setting for setting in effective_settings(run, run.environments[0], "eval")}
    assert all(path.startswith("rollout_config.") for path in settings)
    assert settings["rollout_config.max_steps"].source == "entry"
    timeout = settings["rollout_config.timeout"]
    assert (timeout.value, timeout.source, timeout.below) == (4, "eval_overrides", ("inference.workflow", 3))


def test_warnings_name_what_is_probably_not_meant() -> None:
    run = TrainRun.model_validate(RUN)
    assert [text.partition(":")[0] for text in load_warnings(run)] == [
        "environments.0.workflow_config.group_size",
        "environments.0.max_staleness",
        "environments.0.workflow_config.rollout_config.max_steps",
    ]
    assert [text.partition(": ")[2] for text in load_warnings(run)] == [
        "a group of 1 has no baseline; its rollouts never train",
        "without a limit train.rollout_group_limits.a its old groups can fill all permits",
        "evaluation uses 3 of eval.workflow_config",
    ]
    unlabelled = {**RUN, "train": {**RUN["train"], "label_by": "topic"}, "eval": {"every": 0}}
    limited = {**RUN, "train": {**RUN["train"], "rollout_group_limits": {"a": 1}}, "eval": {"every": 0}}
    for quiet in (unlabelled, limited):
        (only,) = load_warnings(TrainRun.model_validate(quiet))
        assert only.startswith("environments.0.workflow_config.group_size: ")
    assert load_warnings(TrainRun.model_validate(MINIMAL)) == []
    late = {**MINIMAL, "eval": {"at_start": True}}
    assert load_warnings(TrainRun.model_validate(late)) == [
        "eval.at_start: not used; eval.every is 0, so nothing is evaluated"
    ]
    output = {"workflow_config": {"rollout_config": {"output_dir": "x"}}}
    named = TrainRun.model_validate({"train": {**MINIMAL["train"], **output}, "eval": output})
    assert load_warnings(named) == [
        f"{section}.workflow_config.rollout_config.output_dir: not used; the run directory is"
        for section in ("train", "eval")
    ]


@pytest.mark.parametrize(("split", "overridden"), [("eval", []), ("train", ["rollout_config"])])
def test_an_evaluation_says_what_of_an_entry_it_does_not_apply(split: str, overridden: list[str]) -> None:
    own = {"group_size": 2, "rollout_config": {"timeout": 2}}
    entry = {"max_staleness": 0, "group_admission": "all", "workflow_config": own}
    inference = {"model_name": "m", "workflow": {"rollout_config": {"output_dir": "x"}}}
    data = {
        "inference": inference,
        "split": split,
        "environments": [{**entry, "eval_overrides": {"workflow_config": own}}],
    }
    assert load_warnings(EvalRun.model_validate(data)) == [
        "inference.workflow.rollout_config.output_dir: not used; inference.output_dir is",
        *(
            f"environments.0.{path}: not applied by an evaluation"
            for path in (
                "workflow_config.group_size",
                *(f"eval_overrides.workflow_config.{key}" for key in ("group_size", *overridden)),
                "max_staleness",
                "group_admission",
            )
        ),
    ]


def test_the_order_of_an_entrys_settings(write: Write) -> None:
    train = {**RUN["train"], "group_admission": "informative"}
    train["workflow_config"] = {**train["workflow_config"], "straggler_policies": {"a": {"timeout_seconds": 1}}}
    run = load(write({**RUN, "train": train})).train_config
    block = effective_settings(run, run.environments[1], "train")
    assert " ".join(setting.path for setting in block) == (
        "group_size leave_one_out_baseline min_successful_group_size straggler_timeout_seconds straggler_quorum "
        "filter_errors filter_message_actions subagent_datum_keep_probability subagent_datum_sampling_seed "
        "rollout_config.max_steps rollout_config.timeout rollout_config.step_timeout "
        "rollout_config.inference_params.temperature rollout_config.inference_params.top_p "
        "rollout_config.inference_params.top_k rollout_config.inference_params.max_completion_tokens "
        "rollout_config.sampling_precedence rollout_config.extra rollout_config.propagate_root_success "
        "rollout_config.skip_subagent_reward_computation rollout_config.enable_subagent_verifiers "
        "max_staleness group_admission straggler_policies"
    )
    assert [(setting.path, setting.value, setting.source) for setting in block[-3:-1]] == [
        ("max_staleness", 2, "train.max_staleness"),
        ("group_admission", "informative", "train.group_admission"),
    ]
    assert str(block[0]) == f"{'group_size: 4':<60} {'train.workflow_config':<24} (default: 8)"
