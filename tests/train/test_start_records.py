"""What a start writes about itself, and what a resume is refused for."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from platoon.config import ConfigError, EnvironmentConfig, Loaded, WorkflowConfig
from platoon.draw.pool import build_pool
from platoon.envs.listing import Listing, TaskRow
from platoon.train.environments import Environments, Played
from platoon.train.identity import IDENTITY, bind_identity, overlap_warnings, run_identity
from platoon.train.run import train_run
from tests.train.running import loaded, run_dir

SHORT = {"train__max_training_steps": 1, "eval__every": 0, "eval__at_start": False}


async def test_a_start_says_what_it_is_made_of_and_a_resume_as_another_is_refused(tmp_path: Path) -> None:
    entry = {
        "service": "saying:Saying",
        "harness": "platoon-react",
        "harness_options": {"system_prompt": "Say it."},
        "workflow_config": {"group_size": 2},
    }
    first = {**SHORT, "environments": [entry]}
    assert (await train_run(loaded(tmp_path, **first))).status == "finished"
    lock = json.loads((run_dir(tmp_path) / "lock.json").read_text())
    found = {(row["kind"], row["ref"]): row for row in lock["components"]}
    assert set(found) == {("harness", "platoon-react"), ("program", "single"), ("service", "saying:Saying")}
    react = found["harness", "platoon-react"]
    assert react["resolved"] == "platoon-react@1"
    assert react["distribution"] == "platoon"
    assert react["environments"] == ["default"]
    assert react["options"] == {"default": {"train": {"system_prompt": "Say it."}}}
    assert found["service", "saying:Saying"]["distribution"] is None
    assert lock["extensions"] == {}
    assert lock["entry_settings"] == {"default": {"train": {"group_size": 2}}}
    assert lock["tool_call_parsing"]["renderer_name"] == "chat_template"
    assert lock["site"]["gave"] == {}
    identity = json.loads((run_dir(tmp_path) / IDENTITY).read_text())
    assert (identity["model"], identity["renderer"]) == ("platoon-tiny", "chat_template")

    record = {**identity, "model": "another-model"}
    (run_dir(tmp_path) / IDENTITY).write_text(json.dumps(record))
    with pytest.raises(ConfigError, match=r"train.model_name: this run was begun with 'another-model'"):
        await train_run(loaded(tmp_path, **{**first, "train__max_training_steps": 2}))
    lock = json.loads((run_dir(tmp_path) / "lock.json").read_text())
    assert lock["resume_refused"]["identity"].endswith(IDENTITY)
    (run_dir(tmp_path) / IDENTITY).write_text("{")
    with pytest.raises(ConfigError, match="cannot be read"):
        await train_run(loaded(tmp_path, **{**first, "train__max_training_steps": 2}))


async def test_samplers_and_rules_are_recorded_with_their_options(tmp_path: Path) -> None:
    changes = {
        **SHORT,
        "train__task_sampler": "pass_rate",
        "train__task_sampler_options": {"explore": 0.5},
        "environments.0.group_admission": "informative",
    }
    await train_run(loaded(tmp_path, **changes))
    lock = json.loads((run_dir(tmp_path) / "lock.json").read_text())
    found = {(row["kind"], row["level"]): row for row in lock["components"] if "level" in row}
    sampler = found["task_sampler", "run"]
    assert sampler["ref"] == "pass_rate"
    assert sampler["options"]["train"]["explore"] == 0.5
    assert sampler["options"]["train"]["candidates"] == 4096
    assert ("group_admission", "run") not in found
    assert found["group_admission", "entry"]["environments"] == ["default"]
    assert found["group_admission", "entry"]["options"] == {"default": {"band": None}}


async def test_components_that_are_not_there_are_reported_before_anything_is_written(tmp_path: Path) -> None:
    entry = {
        "service": "saying:Nothing",
        "harness": "platoon-reakt",
        "dataset_kwargs": {"limt": 1},
        "reward_processor": "nothing",
    }
    with pytest.raises(ConfigError) as caught:
        await train_run(loaded(tmp_path, environments=[entry]))
    text = "\n".join(caught.value.problems)
    for part in ("did you mean platoon-react", "no attribute 'Nothing'", "limt: unknown key", "reward processor"):
        assert part in text, text
    assert not run_dir(tmp_path).exists()


class HoldOut:
    name = "held"

    def __init__(self, held: Sequence[str]) -> None:
        self.held = held

    async def list_tasks(self, split: str) -> list[str]:
        raise NotImplementedError

    async def get_task(self, task_id: str) -> Any:
        raise NotImplementedError

    async def open(self, task: Any, *, rollout_id: str) -> Any:
        raise NotImplementedError

    def hold_out_record(self) -> Mapping[str, Any]:
        return {"holdout": {"share": 0.5}, "dataset": "d", "held_out": list(self.held)}


def environments(phase: Any, ids: Sequence[str], held: Sequence[str] | None) -> Environments:
    kwargs = {"holdout": {"share": 0.5}} if held is not None else {}
    entry = EnvironmentConfig(service="x:y", service_kwargs=kwargs)
    listing = Listing(tuple(TaskRow(task) for task in ids), {})
    played = {"default": Played(entry, HoldOut(held or ()), WorkflowConfig(), listing)}
    return Environments(phase, played, build_pool({"default": listing.rows}))


def bound(path: Path, ids: Sequence[str], held: Sequence[str] | None, *, resuming: bool) -> list[str]:
    train = environments("train", ids, held)
    made = run_identity(loaded(path).train_config, train, environments("eval", held or ("z",), held))
    return bind_identity(path, made, train, resuming=resuming)


@pytest.mark.parametrize(
    ("ids", "held", "text"),
    [
        ("ab", "cd", None),
        ("a", "c", None),
        ("abc", "d", "held-out tasks would now train: c"),
        ("a", "bcd", "newly held out, and this run may have trained on them: b"),
        ("abc", None, "held-out tasks would now train: c"),
        ("ab", None, None),
    ],
)
def test_held_out_tasks_stay_held_out(ids: str, held: str | None, text: str | None, tmp_path: Path) -> None:
    assert bound(tmp_path, "ab", "cd", resuming=False) == []
    problems = bound(tmp_path, ids, held, resuming=True)
    assert len(problems) == (text is not None)
    assert text is None or text in problems[0]


async def test_a_run_keeps_the_hold_out_it_began_with(tmp_path: Path) -> None:
    def start(steps: int, holdout: int) -> Loaded:
        kwargs = {"holdout": holdout} if holdout else {}
        entry = {"service": "saying:HeldOut", "service_kwargs": kwargs, "harness": "platoon-react"}
        about = {"train__max_training_steps": steps, "eval__every": 5, "eval__at_start": False}
        return loaded(tmp_path, **about, environments=[entry])

    assert (await train_run(start(1, 3))).status == "finished"
    held = ["train-ada", "train-ben", "train-cy"]
    record = json.loads((run_dir(tmp_path) / IDENTITY).read_text())["environments"]["default"]
    assert (record["held_out"], record["eval"]) == (held, held)
    assert record["eval_digest"] == hashlib.sha256("\n".join(held).encode()).hexdigest()
    for holdout, reason in (
        (2, "environments[default]: held-out tasks would now train: train-cy"),
        (0, "environments[default]: held-out tasks would now train: train-ada, train-ben, train-cy"),
        (4, "environments[default]: tasks are newly held out, and this run may have trained on them: train-dan"),
    ):
        with pytest.raises(ConfigError) as refused:
            await train_run(start(2, holdout))
        assert refused.value.problems == [reason]
        lock = json.loads((run_dir(tmp_path) / "lock.json").read_text())
        assert lock["resume_refused"] == {"identity": str(run_dir(tmp_path) / IDENTITY), "problems": [reason]}
    assert (await train_run(start(2, 3))).status == "finished"


def test_a_run_that_began_without_a_hold_out_cannot_add_one(tmp_path: Path) -> None:
    assert bound(tmp_path, "ab", None, resuming=True) == []
    assert (tmp_path / IDENTITY).exists()
    assert "newly held out" in bound(tmp_path, "a", "b", resuming=True)[0]
    (tmp_path / IDENTITY).unlink()
    assert "without holding any out" in bound(tmp_path, "a", "b", resuming=True)[0]


def test_evaluating_on_training_tasks_is_said() -> None:
    train = environments("train", "abc", None)
    assert overlap_warnings(train, environments("eval", "xbc", None)) == [
        "environments[default]: evaluation plays 2 tasks that are also trained on"
    ]
    assert overlap_warnings(train, environments("eval", "xy", None)) == []
    assert overlap_warnings(train, None) == []
