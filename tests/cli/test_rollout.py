"""`platoon rollout`: which entry and policy, where records go, what is shown."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from platoon.cli.app import run
from platoon.cli.single import Asked, find_entry, policy_settings, slug, summary, tree
from platoon.config import ConfigError, EvalRun, TrainRun, load
from platoon.rollout.episode import Episode
from platoon.rollout.outcome import Outcome

EXAMPLE = Path(__file__).parents[2] / "examples" / "first-run" / "trivial.yaml"
TRAIN = {"model_name": "m", "renderer_name": "chat_template", "sampling_seed": 3}


def training(*entries: dict[str, Any]) -> TrainRun:
    return TrainRun.model_validate({"train": TRAIN, "environments": list(entries)})


def test_a_task_of_a_mixture_names_its_entry() -> None:
    mixture = training({"name": "a"}, {"name": "b"})
    assert find_entry(mixture, "b::x::y") == (mixture.environments[1], "x::y")
    for task in ("x", "c::x"):
        with pytest.raises(ConfigError, match="ENTRY::ID with one of the entries a, b"):
            find_entry(mixture, task)
    alone = training({"name": "a"})
    assert find_entry(alone, "x::y") == (alone.environments[0], "x::y")
    with pytest.raises(ConfigError, match="has none to play"):
        find_entry(EvalRun.model_validate({"inference": {"model_name": "m"}}), "x")


def test_the_command_line_changes_the_policy() -> None:
    settings = policy_settings(training(), Asked("t", model="other", model_path="tinker://w", renderer="r"))
    assert (settings.model_name, settings.weights, settings.renderer_name) == ("other", "tinker://w", "r")
    assert settings.sampling_seed == 3
    evaluation = EvalRun.model_validate({"inference": {"model_name": "m", "model_path": "tinker://e"}})
    assert policy_settings(evaluation, Asked("t", renderer="r")).weights == "tinker://e"
    with pytest.raises(ConfigError, match="or give --renderer"):
        policy_settings(evaluation, Asked("t"))


@pytest.mark.parametrize(
    ("task", "expected"), [("a::b/c d", "a-b-c-d"), ("///", "task"), ("x" * 70, "x" * 60), (".-a.-", "a")]
)
def test_the_directory_is_named_after_the_task(task: str, expected: str) -> None:
    assert slug(task) == expected


def test_a_rollout_that_never_started_shows_its_reason() -> None:
    outcome = Outcome.infra("env_config", reason="no task named 'x'")
    shown = summary(Episode.failed("error", outcome), "x")
    assert (shown["outcome"], shown["reward"], shown["agents"]) == ("error", None, [])
    assert tree(shown) == "x: error, no reward, 0 steps\n  error: no task named 'x'"


def test_one_task_is_played_with_the_embedded_service(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "path", list(sys.path))
    out = tmp_path / "out"
    argv = ["rollout", str(EXAMPLE), "--output-dir", str(out), "--json-output", "--task"]
    assert run([*argv, "train:0"]) == 0
    shown = json.loads(capsys.readouterr().out)
    (agent,) = shown["agents"]
    assert (shown["outcome"], agent["role"], agent["parent"]) == ("scored", "root", None)
    assert shown["total_steps"] == agent["steps"] >= 1
    assert shown["reward"] == agent["reward"]
    recorded = json.loads((out / "trajectory_collection.json").read_text())
    assert recorded["id"] == shown["id"]
    assert load(out / "config.resolved.yaml").kind == "train"
    assert json.loads((out / "lock.json").read_text())["python"]
    assert run([*argv, "train:99999"]) == 1
    failed = json.loads(capsys.readouterr().out)
    assert (failed["outcome"], failed["reward"]) == ("error", None)
