"""What is not prepared: the report ends with the command that prepares it."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

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


def test_validate_reports_a_listing_that_fails_in_any_way(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["config", "validate", str(config)]) == 0
    assert run(["config", "validate", "--tasks", str(config)]) == 78
    assert "image of task t1 is missing" in capsys.readouterr().out
    broken = SERVICE.replace('raise EnvNotPrepared("', 'raise ZeroDivisionError("')
    (config.parent / "broken_listing.py").write_text(broken, encoding="utf-8")
    change = "environments.0.service=broken_listing:Images"
    assert run(["config", "validate", "--tasks", str(config), change]) == 78
    assert "the tasks cannot be listed: ZeroDivisionError: image of task t1" in capsys.readouterr().out
