"""`platoon rollout`: which entry and policy, where records go, what is shown."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from platoon.cli.app import run
from platoon.cli.single import Asked, find_entry, policy_settings, slug
from platoon.cli.single_shown import summary, tree
from platoon.config import ConfigError, EnvironmentConfig, EvalRun, TrainRun, load
from platoon.envs.listing import find_task
from platoon.envs.services import build_service
from platoon.rollout.episode import Episode
from platoon.rollout.outcome import Outcome
from platoon.rollout.trajectory import (
    Interactions,
    ParentInfo,
    Task,
    Trajectory,
    TrajectoryCollection,
    TrajectoryStep,
)

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
    settings = policy_settings(
        training({"name": "a"}), Asked("t", model="other", model_path="tinker://w", renderer="r")
    )
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


def test_the_tree_says_of_each_agent_what_it_used_and_how_it_ended() -> None:
    def step(tokens_in: int, tokens_out: int) -> TrajectoryStep:
        usage = {"prompt_tokens": tokens_in, "completion_tokens": tokens_out}
        return TrajectoryStep(misc={"action_misc": {"usage": usage}})

    root = Trajectory(id="a", task=Task(goal="Sum  it\nup"), steps=[step(10, 2), step(14, 3)], reward=0.5)
    root.misc = {"outcome": {"status": "scored", "reason": None}, "agent_result": {"status": "completed"}}
    child = Trajectory(id="b", parent_info=ParentInfo("a", 1), steps=[step(7, 1)])
    child.misc = {"outcome": {"status": "timeout", "reason": "agent_timeout"}}
    collection = TrajectoryCollection(id="r", trajectories={"a": root, "b": child})
    episode = Episode(collection, Interactions(), Outcome("scored", {"reward": 0.5}), "completed", 1.0)
    assert tree(summary(episode, "t")).splitlines() == [
        "t: scored, reward 0.5, 3 steps",
        "  root: 2 calls, 24 tokens in, 5 out, reward 0.5, completed",
        "    Sum it up",
        "    child: 1 call, 7 tokens in, 1 out, no reward, agent_timeout",
    ]


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
    assert shown["total_steps"] == agent["steps"] == agent["calls"] >= 1
    assert shown["reward"] == agent["reward"]
    assert (out / "lock.json").is_file()
    recorded = json.loads((out / "trajectory_collection.json").read_text())
    assert recorded["id"] == shown["id"]
    (trajectory,) = recorded["trajectories"].values()
    assert trajectory["task"]["id"] == "train:0"
    usage = [step["misc"]["action_misc"]["usage"] for step in trajectory["steps"]]
    assert agent["prompt_tokens"] == sum(one["prompt_tokens"] for one in usage) > 0
    assert agent["completion_tokens"] == sum(one["completion_tokens"] for one in usage) > 0
    assert agent["finish"] == (trajectory["misc"]["outcome"]["reason"] or "completed")
    assert load(out / "config.resolved.yaml").kind == "train"
    lock = json.loads((out / "lock.json").read_text())
    assert lock["policy"] == {
        "backend": "tinker",
        "model": "platoon-tiny",
        "model_path": None,
        "renderer": "chat_template",
        "base_url_origin": "local",
    }


@pytest.mark.parametrize(
    ("config", "flags", "reason"),
    [
        ("train", ["--task", "train:99999"], "split train has no task 'train:99999'; did you mean train:9999, "),
        (
            "train",
            ["--task", "nothing"],
            "split train has no task 'nothing'; tasks are, say, train:0, train:1, train:2",
        ),
        ("train", ["--task", "v:1", "--split", "val"], "split val has no task 'v:1'; did you mean "),
        ("eval", ["--task", "number_search.val.1000"], "split val has no task 'number_search.val.1000'; did you mean "),
    ],
)
def test_a_task_that_there_is_not_is_78_before_anything_is_written(
    config: str, flags: list[str], reason: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["rollout", str(configured(tmp_path, config)), "--output-dir", str(tmp_path / "out"), *flags]) == 78
    captured = capsys.readouterr()
    assert f"platoon: environments[near]: {reason}" in captured.err
    assert not captured.out
    assert not (tmp_path / "out").exists()


async def test_a_task_is_looked_for_in_the_split_that_its_phase_plays() -> None:
    reference = "python://platoon.envs.number_search.env:NumberSearchEnvironment"
    service = build_service(reference, {})
    entry = EnvironmentConfig(name="near", service=reference, eval_dataset_kwargs={"split_name": "val"})
    assert await find_task(entry, "eval", service, "number_search.val.7", split="validation") == "val:7"
    assert await find_task(entry, "train", service, "number_search.val.7", asked="val") == "val:7"
    assert await find_task(entry, "train", service, "number_search.train.7") == "train:7"
    assert await find_task(entry, "eval", service, "train:3") == "train:3"  # an id says its split


def configured(tmp_path: Path, kind: str) -> Path:
    about = {"model_name": "platoon-tiny", "renderer_name": "chat_template"}
    section = {"train": about} if kind == "train" else {"inference": about, "split": "validation"}
    entry = {"name": "near", "env": "platoon-number-search", "harness": "platoon-react"}
    path = tmp_path / f"{kind}.yaml"
    path.write_text(yaml.safe_dump({"tinker_base_url": "local", **section, "environments": [entry]}))
    return path
