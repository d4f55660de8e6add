from __future__ import annotations

import copy
from typing import Any

import pytest

from platoon.envs.named import EnvironmentEntry, NamedEnvironments, deep_merge, list_environments, resolve_environment

OURS = EnvironmentEntry(
    "acme-quiz",
    "2.1",
    harness_defaults={"platoon-react": {"system_prompt": "quiz", "sampling": {"top_p": 0.9}}},
    service="python://quiz:Quiz",
    service_kwargs={"max_tool_calls": 5, "secrets": {"a": "1"}},
)
HERE = "tests.envs.test_named:OURS"


def expand(**entry: Any) -> dict[str, Any]:
    return NamedEnvironments().expand(entry)


def test_own_keys_lie_over_the_named_ones_mapping_by_mapping() -> None:
    found = expand(env=HERE, harness="acme-loop", service_kwargs={"max_tool_calls": 9})
    assert found["service"] == "python://quiz:Quiz"
    assert found["service_kwargs"] == {"max_tool_calls": 9, "secrets": {"a": "1"}}
    assert found["env"] == HERE
    assert "harness_options" not in found


def test_a_harness_gets_the_defaults_made_for_it_under_its_own_options() -> None:
    found = expand(env=HERE, harness="platoon-react@1", harness_options={"sampling": {"temperature": 1.0}})
    assert found["harness_options"] == {"system_prompt": "quiz", "sampling": {"top_p": 0.9, "temperature": 1.0}}
    assert "harness_options" not in expand(env=HERE, harness="some.module:fn")


def test_a_mixture_needs_options_of_its_own_when_one_of_it_has_defaults() -> None:
    harness = {"platoon-react": 1.0, "other": 1.0}
    with pytest.raises(ValueError, match="set harness_options"):
        expand(env=HERE, harness=harness)
    assert expand(env=HERE, harness=harness, harness_options={"a": 1})["harness_options"] == {"a": 1}


@pytest.mark.parametrize("harness", ["platoon-react", "acme-loop"])
def test_expanding_twice_changes_nothing(harness: str) -> None:
    once = expand(env="platoon-number-search", harness=harness)
    assert once["env"] == "platoon-number-search@1"
    assert NamedEnvironments().expand(copy.deepcopy(once)) == once


def test_an_entry_without_env_is_left_alone() -> None:
    entry = {"service": "x:y"}
    assert NamedEnvironments().expand(entry) is entry


@pytest.mark.parametrize(
    ("reference", "text"),
    [
        ("platoon-number-serch", "did you mean platoon-number-search"),
        ("platoon-number-search@9", "no version '9'"),
        ("tests.envs.test_named:HERE", "not a platoon.EnvironmentEntry"),
        ("no.such.module:X", "cannot be imported"),
    ],
)
def test_a_reference_that_names_nothing_says_so(reference: str, text: str) -> None:
    with pytest.raises(ValueError, match=text):
        resolve_environment(reference)


@pytest.mark.parametrize(
    ("keys", "text"),
    [
        ({"weight": 1}, "weight"),
        ({"harness_options": {}}, "harness_options"),
        ({"eval_overrides": {"harness_options": {}}}, "eval_overrides.harness_options"),
        ({"workflow_config": {"group_size": 4}}, "workflow_config.group_size"),
        ({"servce": "x:y"}, "servce"),
    ],
)
def test_a_named_environment_may_not_set_what_belongs_to_the_config(keys: dict[str, Any], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        EnvironmentEntry("acme-quiz", **keys)


@pytest.mark.parametrize("name", ["Acme", "acme quiz", "acme.toml", "-acme", ""])
def test_names_follow_the_rules(name: str) -> None:
    with pytest.raises(ValueError, match="name"):
        EnvironmentEntry(name)


def test_entries_are_frozen_and_hand_out_copies() -> None:
    OURS.entry()["service_kwargs"]["max_tool_calls"] = 0
    OURS.defaults_for("platoon-react")["system_prompt"] = ""
    assert OURS.entry()["service_kwargs"]["max_tool_calls"] == 5
    assert OURS.defaults_for("platoon-react")["system_prompt"] == "quiz"
    with pytest.raises(AttributeError):
        OURS.name = "x"  # type: ignore[misc]


def test_merging_replaces_lists_and_shares_nothing() -> None:
    upper = {"a": {"b": [1]}, "c": None}
    merged = deep_merge({"a": {"b": [2], "d": 3}, "c": 4}, upper)
    assert merged == {"a": {"b": [1], "d": 3}, "c": None}
    merged["a"]["b"].append(9)
    assert upper["a"] == {"b": [1]}


def test_the_shipped_environment_is_listed() -> None:
    assert ("platoon-number-search", "platoon") in list_environments()
