"""The commands as a user meets them: exit codes, reports, and what starting them imports."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

import platoon
from platoon.cli.app import run
from platoon.config import load

HEAVY = ("torch", "tinker", "prefect", "openreward", "polars", "wandb", "pyarrow")
ENTRY = {"env": "platoon-number-search", "harness": "platoon-react"}
GOOD = {
    "train": {"model_name": "m", "renderer_name": "chat_template", "max_training_steps": 1},
    "environments": [ENTRY],
}


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "run.yaml"
    path.write_text(yaml.safe_dump(GOOD), encoding="utf-8")
    return path


@pytest.fixture(autouse=True)
def _import_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", list(sys.path))


def python(*arguments: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, *arguments], capture_output=True, text=True, cwd=cwd, check=False)


def test_help_and_listing_import_no_training_library() -> None:
    code = (
        "import sys; from platoon.cli.app import run\n"
        "codes = [run([]), run(['--help']), run(['train', '--help']), run(['config']), run(['harness', 'list'])]\n"
        f"print(codes, [name for name in {HEAVY!r} if name in sys.modules])"
    )
    done = python("-c", code)
    assert done.stdout.splitlines()[-1] == "[0, 0, 0, 0, 0] []", done.stderr


def test_version() -> None:
    assert python("-m", "platoon", "--version").stdout == f"{platoon.__version__}\n"


@pytest.mark.parametrize(
    "argv",
    [
        ["nothing"],
        ["train"],
        ["train", "x.yaml", "--nothing"],
        ["train", "x.yaml", "--orchestration", "maybe"],
        ["rollout", "x.yaml"],
        ["config", "validate"],
        ["config", "validate", "train.batch_size=2"],
        ["config", "nothing"],
        ["tasks", "export", "x", "--format", "xls"],
        ["tasks", "export", "x", "--format", "parquet"],
        ["serve", "--port", "many"],
    ],
)
def test_wrong_use_is_64(argv: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(argv) == 64
    captured = capsys.readouterr()
    assert captured.err
    assert not captured.out


@pytest.mark.parametrize("command", [["train"], ["eval"], ["prepare"], ["config", "show"], ["rollout", "--task", "t"]])
def test_a_bad_configuration_is_78_with_one_report(
    command: list[str], config: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bad = (
        ["inference.model_name=m", "inference.bad=1"] if command == ["eval"] else ["train.bad=1", "train.batch_size=x"]
    )
    assert run([*command, str(config), *bad]) == 78
    lines = capsys.readouterr().err.splitlines()
    assert lines[0].startswith(f"platoon: configuration {config}: ")
    assert all(line.startswith("  ") for line in lines[1:])
    assert len(lines) >= 3


def test_show_prints_what_loads_again(config: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    for flags in ([], ["--defaults"]):
        argv = ["config", "show", str(config), "train.batch_size=4", "stats.wandb.api_key=k-secret", *flags]
        assert run(argv) == 0
        shown = capsys.readouterr().out
        assert "k-secret" not in shown
        again = tmp_path / "again.yaml"
        again.write_text(shown, encoding="utf-8")
        loaded = load(again)
        assert loaded.train_config.train.batch_size == 4
        assert loaded.config.environments[0].env == "platoon-number-search@1"
        assert loaded.config.environments[0].agents.max_depth == 0
    assert "max_concurrent_rollouts: 32" in shown
    assert "label_by: _platoon_environment" in shown
    assert "task_sampler: auto" in shown


def test_off_needs_no_quotes(config: Path) -> None:
    with config.open("a", encoding="utf-8") as file:
        file.write("orchestration: off\n")
    assert load(config).config.orchestration == "off"
    assert load(config, ["orchestration=auto"]).config.orchestration == "auto"
    assert run(["config", "validate", str(config), "orchestration=false"]) == 78


def test_validate_reports_every_file(config: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    bad = tmp_path / "bad.yaml"
    bad.write_text("train: {model_name: m}\n", encoding="utf-8")
    assert run(["config", "validate", str(config)]) == 0
    assert capsys.readouterr().out == f"ok {config} (train)\n"
    assert run(["config", "validate", str(config), str(bad), str(tmp_path / "none.yaml"), "train.batch_size=2"]) == 78
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == f"ok {config} (train)"
    assert lines[1] == f"FAIL {bad}"
    assert lines[2] == f"  train.renderer_name: missing; it has no default ({bad}:1)"
    assert lines[3] == f"FAIL {tmp_path / 'none.yaml'}"


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ("environments.0.harness=platoon-reakt", "platoon-reakt"),
        ("environments.0.package=no_such_package_here", "cannot import no_such_package_here"),
        ("environments.0.program=sinlge", "did you mean single"),
        ("environments.0.service=python://no_such_module_here:Env", "no module is named 'no_such_module_here'"),
        ("environments.0.service_kwargs={labl: x}", "labl: unknown key; did you mean label?"),
        ("environments.0.env=platoon-number-serch", "platoon-number-serch"),
        ("environments.0.dataset_kwargs={limt: 3}", "limt"),
    ],
)
def test_validate_looks_components_up(
    change: str, reason: str, config: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["config", "validate", str(config), change]) == 78
    out = capsys.readouterr().out
    assert "  environments.0." in out
    assert reason in out
    if "env=" not in change:
        assert run(["config", "validate", "--no-resolve", str(config), change]) == 0


def test_validate_looks_up_what_acts_on_the_whole_run(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["config", "validate", str(config), "train.task_sampler=pass_rte"]) == 78
    assert "train.task_sampler: 'pass_rte' is not known; did you mean 'pass_rate'?" in capsys.readouterr().out
    options = "train.task_sampler_options={explore: 3}"
    assert run(["config", "validate", str(config), "train.task_sampler=pass_rate", options]) == 78
    assert "train.task_sampler_options.explore: must be between 0 and 1" in capsys.readouterr().out


def test_validate_prints_the_plan_and_refuses_what_training_refuses(
    config: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    mixture = "environments+={name: b, env: platoon-number-search, harness: platoon-react, weight: tasks}"
    argv = ["config", "validate", "--tasks", str(config), "train.max_training_steps=5"]
    assert run([*argv, "environments.0.name=a", mixture, "eval.every=1"]) == 0
    out = capsys.readouterr().out
    assert "sampling: 100000 tasks" in out
    assert "b: 50000 tasks, weight tasks, share 50.0%" in out
    assert "evaluation: 1000 tasks of a" in out
    for change, text in (
        ("environments.0.dataset_kwargs={limit: 3}", "train.batch_size: 32 is more than the 3 training tasks"),
        ("environments.0.exclude_tasks=[nothing]", "no task is named 'nothing'"),
        ("environments.0.dataset_kwargs={split_name: dev}", "dev"),
        ("train.label_by=colour", "train.label_by"),
    ):
        assert run([*argv, change]) == 78
        out = capsys.readouterr().out
        assert out.startswith(f"FAIL {config}\n")
        assert text in out


def test_a_projects_modules_are_found_beside_the_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "project_with_harness.py").write_text(
        "import platoon as pt\n\n\n@pt.harness('mine')\nasync def mine(ctx):\n    return pt.AgentResult()\n"
    )
    path = tmp_path / "run.yaml"
    path.write_text(
        yaml.safe_dump({**GOOD, "environments": [{**ENTRY, "harness": "project_with_harness:mine"}]}), encoding="utf-8"
    )
    assert run(["config", "validate", str(path)]) == 0, capsys.readouterr().out


def test_a_file_that_does_not_exist_is_78(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["train", str(tmp_path / "none.yaml")]) == 78
    assert "cannot be read: No such file or directory" in capsys.readouterr().err


def test_lists(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["harness", "list"]) == 0
    assert "platoon-react@1" in capsys.readouterr().out
    assert run(["env", "list"]) == 0
    assert "platoon-number-search" in capsys.readouterr().out


def test_serve_answers_until_it_is_stopped(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "platoon", "serve", "--model", "platoon-tiny", "--state", str(tmp_path / "state")]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert "http://127.0.0.1:" in line, line
        url = line.split()[-1]
        hint = f"TINKER_BASE_URL={url} and TINKER_API_KEY=tml-local"
        assert hint in process.stdout.readline()
    finally:
        process.terminate()
        process.communicate()
    assert os.path.isdir(tmp_path / "state")
