"""What is not prepared: the report ends with the command that prepares it."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from platoon.cli.app import run

SERVICE = """
from platoon.envs.contract import EnvNotPrepared

class Images:
    name = "images"
    async def list_tasks(self, split):
        raise EnvNotPrepared("image of task t1 is missing\\nimage of task t2 is missing")
    async def get_task(self, task_id): raise NotImplementedError
    async def open(self, task, *, rollout_id): raise NotImplementedError
"""


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "unprepared_images.py").write_text(SERVICE, encoding="utf-8")
    content = {
        "log_path": str(tmp_path / "runs"),
        "tinker_base_url": "local",
        "orchestration": "off",
        "train": {"model_name": "platoon-tiny", "renderer_name": "chat_template", "max_training_steps": 1},
        "environments": [{"service": "unprepared_images:Images", "harness": "platoon-noop"}],
    }
    path = tmp_path / "a run.yaml"
    path.write_text(yaml.safe_dump(content), encoding="utf-8")
    return path


def test_training_names_the_command_that_prepares(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["train", str(config), "train.batch_size=2", "stats.wandb.notes=two words"]) == 78
    lines = capsys.readouterr().err.splitlines()
    command = shlex.join(["platoon", "prepare", str(config), "train.batch_size=2", "stats.wandb.notes=two words"])
    assert lines[-4:] == [
        "platoon: not prepared; the last line prepares it",
        "  image of task t1 is missing",
        "  image of task t2 is missing",
        f"  {command}",
    ]
    assert shlex.split(lines[-1])[3] == "train.batch_size=2"


@pytest.mark.parametrize("command", ["train", "eval", "rollout"])
def test_a_missing_key_is_told_before_anything_is_prepared(
    command: str, config: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("TINKER_API_KEY", raising=False)
    content = yaml.safe_load(config.read_text()) | {"tinker_base_url": "http://127.0.0.1:9"}
    if command == "eval":
        content["inference"] = {key: content["train"][key] for key in ("model_name", "renderer_name")}
        del content["train"], content["log_path"]
    config.write_text(yaml.safe_dump(content))
    task = ["--task", "t1"] if command == "rollout" else []
    assert run([command, str(config), "--prepare", *task]) == 78
    captured = capsys.readouterr()
    assert captured.err.splitlines()[-1].startswith("platoon: TINKER_API_KEY is not set")
    assert "tokenizer" not in captured.err


def test_validate_reports_a_listing_that_fails_in_any_way(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["config", "validate", str(config)]) == 0
    assert run(["config", "validate", "--tasks", str(config)]) == 78
    assert "image of task t1 is missing" in capsys.readouterr().out
    broken = SERVICE.replace('raise EnvNotPrepared("', 'raise ZeroDivisionError("')
    (config.parent / "broken_listing.py").write_text(broken, encoding="utf-8")
    change = "environments.0.service=broken_listing:Images"
    assert run(["config", "validate", "--tasks", str(config), change]) == 78
    told = capsys.readouterr().out
    assert "the tasks cannot be listed: ZeroDivisionError: image of task t1" in told
    assert "while environments[default] listed the tasks of train" in told


ENVIRONMENTS = [{"env": "platoon-number-search", "harness": "platoon-react"}]


@pytest.mark.parametrize(
    ("content", "code", "said"),
    [
        (
            {"environments": ENVIRONMENTS},
            0,
            ["environments[default] tasks (train): current", "environments[default] tasks (eval): current", "ready"],
        ),
        ({"environments": [{**ENVIRONMENTS[0], "harness": "platoon-reakt"}]}, 78, ["did you mean platoon-react?"]),
        ({"environments": []}, 78, ["names none, so there is nothing to prepare"]),
        ({"environments": [{**ENVIRONMENTS[0], "weigth": 1}]}, 78, ["did you mean environments.0.weight?"]),
    ],
)
def test_a_file_of_environments_is_prepared_in_both_phases(
    content: dict[str, Any], code: int, said: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "environments.yaml"
    path.write_text(yaml.safe_dump(content), encoding="utf-8")
    assert run(["prepare", "--dry-run", str(path)]) == code
    captured = capsys.readouterr()
    shown = captured.out.splitlines() if code == 0 else [captured.err]
    assert [text in line for text, line in zip(said, shown, strict=True)] == [True] * len(said)


def test_preparing_says_what_the_site_profile_gave(
    config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "site.yaml").write_text("runs: here\n")
    monkeypatch.setenv("PLATOON_SITE", str(tmp_path / "site.yaml"))
    assert run(["prepare", str(config), "environments=[{env: platoon-number-search, harness: platoon-react}]"]) == 0
    assert f"platoon: site profile {tmp_path / 'site.yaml'}" in capsys.readouterr().err
