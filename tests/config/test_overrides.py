"""Overrides by text and by mapping."""

from __future__ import annotations

import enum
import json
from typing import Annotated, Any

import pytest
from pydantic import Field

from platoon.config import ConfigError, RefillConfig, Section, load, load_partial

from .conftest import MINIMAL, Write

TEXTS = ["null", "true", "1e5", "[a]", "a: b", "", "05", "none", "~", '"', 'a"b', "é ", "#", "- x", "'q'", "1_0", "\n"]


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Painted(Section):
    colour: Annotated[Colour, Field(strict=False)] = Colour.BLUE


@pytest.mark.parametrize("value", [None, *TEXTS])
@pytest.mark.parametrize("key", ["stats.wandb.notes", "train.workflow_config.rollout_config.extra.x"])
def test_a_value_comes_back_equal_by_mapping_and_by_json(write: Write, key: str, value: str | None) -> None:
    base = write(MINIMAL)
    by_mapping = _at(load(base, {key: value}).config, key)
    by_text = _at(load(base, [f"{key}={json.dumps(value)}"]).config, key)
    assert (by_mapping, by_text) == (value, value)
    assert type(by_mapping) is type(by_text) is type(value)


def test_a_bool_stays_a_bool_and_is_refused_for_text(write: Write) -> None:
    base = write(MINIMAL)
    loaded = load(base, {"train.workflow_config.rollout_config.extra.x": True})
    assert _at(loaded.config, "train.workflow_config.rollout_config.extra.x") is True
    with pytest.raises(ConfigError, match=r"stats\.wandb\.notes: must be text; got true"):
        load(base, {"stats.wandb.notes": True})
    assert load(base, ["stats.wandb.notes=true"]).train_config.stats.wandb.notes == "true"


@pytest.mark.parametrize(
    ("override", "expected"),
    [
        ("train.batch_size=1_6", 16),
        *((f"train.num_epochs={word}", None) for word in ("null", "Null", "NULL", "none", "None", "~")),
        *((f"tinker_base_url={word}", None) for word in ("null", "~")),
        ("train.num_epochs=+3", 3),
        ("train.optimizer.eps=1_0.5", 10.5),
        *((f"eval.at_start={word}", True) for word in ("true", "True", "yes", "on", "1")),
        *((f"eval.at_start={word}", False) for word in ("false", "NO", "off")),
        ("train.permit_release=group", "group"),
        ("train.workflow_config.straggler_policies.slow.timeout_seconds=5", 5.0),
        ("train.rollout_group_limits={a.b: 3}", {"a.b": 3}),
        ("train.refill={max_groups_per_step: 2e0}", RefillConfig(max_groups_per_step=2.0)),
        ("train.workflow_config.worker_preload=[]", ()),
        ("stats.wandb.tags=[a, b]", ("a", "b")),
        ("stats.wandb.tags+=[a", ("[a",)),
        ("train.renderer_kwargs.x+={a: 1e-3}", [{"a": "1e-3"}]),
        ("train.renderer_kwargs.new.deep.x=1", 1),
        ("train.optimizer.learning_rate=3e-5", 3e-5),
        ("train.optimizer.learning_rate=1", 1.0),
        ("stats.trial_name=1", "1"),
        ("stats.trial_name=a=b", "a=b"),
        ("stats.wandb.notes=", ""),
        ("eval.at_start=YES", True),
        ("eval.at_start=0", False),
        ("eval.strategy=epoch", "epoch"),
        ("train.loss_fn_config={x: 1e-3}", {"x": 1e-3}),
        ("train.loss_fn_config.x=1e-3", 1e-3),
        ("train.renderer_kwargs.x=none", "none"),
        ("train.renderer_kwargs.x=null", None),
        ("train.renderer_kwargs.x=", None),
        ("train.renderer_kwargs.x=1e-3", 1e-3),
        ("train.renderer_kwargs.x=nan", "nan"),
        ("train.renderer_kwargs.x=infinity", "infinity"),
        ("train.renderer_kwargs.x=[1, {a: b}]", [1, {"a": "b"}]),
        ("train.renderer_kwargs.x={a", "{a"),
        ("train.renderer_kwargs.x=2024-01-02", "2024-01-02"),
        ('train.renderer_kwargs.x="1"', "1"),
    ],
)
def test_a_text_is_read_by_the_type_of_its_key(write: Write, override: str, expected: Any) -> None:
    key = override.partition("=")[0].removesuffix("+")
    found = _at(load(write(MINIMAL), [override]).config, key)
    assert found == expected
    assert type(found) is type(expected)


@pytest.mark.parametrize(
    ("override", "reason"),
    [
        ("train.batch_size=1.0", "must be an integer"),
        ("train.batch_size=true", "must be an integer"),
        ("train.optimizer.beta1=abc", "must be a number"),
        ("eval.at_start=maybe", "must be true or false"),
        ("eval.strategy=none", "use every: 0"),
        ("eval.strategy=never", "must be one of step, epoch"),
        ("environments.0.name=a", "has no items in the file"),
        ("train.batch_size.x=1", "is a single value, not a section"),
        ("train.batch_size+=1", "is not a list"),
        ("train..x=1", "part of the key is empty"),
        ("=1", "part of the key is empty"),
        ("train.batch_size", "no override"),
        ("train.bach_size=1", "did you mean train.batch_size"),
        ("train.num_epochs=", "must be an integer; got ''"),
        ("train.num_epochs=NONE", "must be an integer; got 'NONE'"),
        ("train.optimizer.eps=inf", "must be a finite number"),
        ("train.permit_release=Group", "must be one of group, rollout; got 'Group'"),
        ("train.optimizer.eps.x=1", "train.optimizer.eps is a single value, not a section"),
        ("train.optimizer=null", "must be a mapping; got 'null'"),
        ("stats.wandb.tags=a", "must be a list; got 'a'"),
        ("stats.wandb.tags.0=a", "stats.wandb.tags has no items in the file; append one with stats.wandb.tags+="),
        ("train.rollout_group_limits.a=x", "must be an integer; got 'x'"),
        ("train.workflow_config={group_size: x}", 'group_size: must be an integer; got "x"'),
        ("environments+={seed: x}", 'environments.0.seed: must be an integer; got "x"'),
    ],
)
def test_a_bad_override_is_reported(write: Write, override: str, reason: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load(write(MINIMAL), [override])
    (problem,) = caught.value.problems
    assert reason in problem
    assert override in problem


def test_lists_are_indexed_and_appended_to(write: Write) -> None:
    entries = [{"name": "a", "service": "x:Y"}, {"name": "b", "service": "x:Y"}]
    base = write({**MINIMAL, "environments": entries})
    overrides = [
        "environments.0.seed=3",
        "environments.-1.seed=4",
        "environments+={name: q}",
        "environments.2.seed=5",
        "environments.0.exclude_tasks+=t1",
        "environments.0.exclude_tasks+=2",
        "environments.0.workflow_config.group_size=2",
    ]
    first, second, third = load(base, overrides).config.environments
    assert (first.seed, second.seed, third.seed, third.name) == (3, 4, 5, "q")
    assert first.exclude_tasks == ("t1", "2")
    assert first.workflow_config.group_size == 2
    for bad, reason in (
        ("environments.7.seed=1", "environments has 2 items; there is no 7"),
        ("environments.-3.seed=1", "environments has 2 items; there is no -3"),
        ("environments.x.seed=1", "no index"),
        ("environments.0.workflow_config.group_size=1.5", "must be an integer"),
    ):
        with pytest.raises(ConfigError, match=reason):
            load(base, [bad])


def test_a_name_that_has_a_dot_is_set_by_the_mapping_above_it(write: Write) -> None:
    base = write({**MINIMAL, "environments": [{"service": "x:Y"}]})
    loaded = load(base, ["environments.0.harness={mini-swe-agent@2.4.6: 1, b: 2}"])
    assert loaded.config.environments[0].harness == {"mini-swe-agent@2.4.6": 1.0, "b": 2.0}
    with pytest.raises(ConfigError) as caught:
        load(base, ["environments.0.harness.mini-swe-agent@2.4.6=1"])
    (only,) = caught.value.problems
    assert "set a name that has a dot by environments.0.harness={NAME: VALUE}" in only


def test_an_enum_of_ones_own_is_set_by_value_or_name(write: Write) -> None:
    path = write({})
    for text in ("red", "RED"):
        loaded = load_partial(path, [f"colour={text}"], schema=Painted)
        assert isinstance(loaded.config, Painted)
        assert loaded.config.colour is Colour.RED
    with pytest.raises(ConfigError, match="must be one of red, blue; got 'green'"):
        load_partial(path, ["colour=green"], schema=Painted)


def test_a_mapping_merges_and_all_failures_are_reported_together(write: Write) -> None:
    base = write({"train": {**MINIMAL["train"], "optimizer": {"beta1": 0.5}}})
    merged = load(base, ["train.optimizer={beta2: 0.6}"]).train_config.train.optimizer
    assert (merged.beta1, merged.beta2) == (0.5, 0.6)
    assert (
        load(base, ["train.optimizer={beta1: 0.6}", "train.optimizer.beta1=0.7"]).train_config.train.optimizer.beta1
        == 0.7
    )
    free = ["train.loss_fn_config={a: 1}", "train.loss_fn_config={b: 2}"]
    assert load(base, free).train_config.train.loss_fn_config == {"a": 1, "b": 2}
    nested = load(base, {"train": {"optimizer": {"beta2": 0.7}}}).train_config.train.optimizer
    assert (nested.beta1, nested.beta2) == (0.5, 0.7)
    with pytest.raises(ConfigError) as caught:
        load(base, ["train.batch_size=x", "train.lora_rank=y", "train.loss=z"])
    assert len(caught.value.problems) == 3


def test_overrides_never_change_the_file_or_a_later_load(write: Write) -> None:
    base = write({**MINIMAL, "environments": [{"service": "x:Y", "service_kwargs": {"a": [1]}}]})
    changed = load(base, {"environments.0.service_kwargs.a": [2], "eval.workflow_config.rollout_config.max_steps": 1})
    again = load(base)
    assert changed.config.environments[0].service_kwargs == {"a": [2]}
    assert again.config.environments[0].service_kwargs == {"a": [1]}
    assert again.train_config.eval.workflow_config.rollout_config.max_steps is None


def test_a_value_that_no_file_could_hold_is_refused(write: Write) -> None:
    with pytest.raises(ConfigError, match="object is no plain value"):
        load(write(MINIMAL), {"train.renderer_kwargs.x": object()})


def _at(config: Any, key: str) -> Any:
    for part in key.split("."):
        config = config[part] if isinstance(config, dict) else getattr(config, part)
    return config
