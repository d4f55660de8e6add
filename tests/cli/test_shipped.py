"""Our flows and tasks next to a user's own `tasks.py` and `flows/`, however platoon is started."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
CONFIG = """
train: {model_name: platoon-tiny, renderer_name: chat_template, max_training_steps: 1, batch_size: 2}
stats: {experiment_name: e, trial_name: t}
log_path: runs
tinker_base_url: local
environments: [{env: platoon-number-search}]
"""
LOAD = "from platoon.cli.shipped import load, load_flow\n"


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A user's directory whose names clash with ours."""
    (tmp_path / "tasks.py").write_text("MINE = 'the user\\'s tasks'\n")
    (tmp_path / "flows").mkdir()
    (tmp_path / "flows/__init__.py").write_text("")
    (tmp_path / "flows/prepare.py").write_text("raise AssertionError('the user\\'s flows were imported as ours')\n")
    (tmp_path / "flows/mine.py").write_text("MINE = 'the user\\'s flows'\n")
    return tmp_path


def python(code: str, cwd: Path, **environment: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=cwd, env=environment, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_neither_side_shadows_the_other(project: Path) -> None:
    code = (
        f"import sys\nsys.path.insert(0, '')\n{LOAD}"
        "ours = load_flow('prepare')\n"
        "import tasks, flows.mine\n"
        "assert tasks.MINE and flows.mine.MINE\n"
        "recording = load('tasks.recording')\n"
        "assert ours.recorded is recording.recorded, 'one recording module, whoever imports it'\n"
        "assert tasks.__file__.endswith('tasks.py') and not hasattr(tasks, 'recording')\n"
        "assert 'prefect' not in sys.modules\n"
        "print(ours.__file__)\n"
    )
    assert Path(python(code, project, PYTHONPATH=str(ROOT)).strip()) == ROOT / "flows/prepare.py"


def test_the_users_modules_may_come_first(project: Path) -> None:
    code = f"import tasks, flows\n{LOAD}assert load_flow('prepare').run_prepare\nassert load('tasks.breaker').Breaker\n"
    python(code, project, PYTHONPATH=f".:{ROOT}")


@pytest.mark.parametrize(
    ("command", "environment"),
    [
        ([str(Path(sys.executable).parent / "platoon")], {}),
        ([sys.executable, "-m", "platoon"], {}),
        ([sys.executable, "-m", "platoon"], {"PYTHONPATH": "."}),
    ],
    ids=["console script", "python -m platoon", "PYTHONPATH=."],
)
def test_prepare_runs_in_such_a_directory(project: Path, command: list[str], environment: dict[str, str]) -> None:
    config = project / "run.yaml"
    config.write_text(CONFIG)
    done = subprocess.run(
        [*command, "prepare", "run.yaml", "--dry-run"],
        cwd=project,
        env={"PLATOON_ORCHESTRATION": "off", "HOME": str(project), **environment},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    assert "policy tokenizer: current" in done.stdout
    assert done.stdout.splitlines()[-1].startswith("ready (")


def test_the_wheels_layout(tmp_path: Path, project: Path) -> None:
    site = tmp_path / "site"
    shutil.copytree(ROOT / "platoon", site / "platoon", ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("flows", "tasks"):
        shutil.copytree(ROOT / name, site / "platoon/_shipped" / name, ignore=shutil.ignore_patterns("__pycache__"))
    code = f"{LOAD}print(load_flow('prepare').__file__)\nprint(load('tasks.endpoint').__file__)\n"
    files = [Path(line) for line in python(code, project, PYTHONPATH=str(site)).split()]
    assert files == [site / "platoon/_shipped/flows/prepare.py", site / "platoon/_shipped/tasks/endpoint.py"]


def test_nothing_rewritten_is_cached(project: Path) -> None:
    """The byte code of an ordinary import of the same file must stay ordinary."""
    python(f"{LOAD}load('tasks.breaker')", project, PYTHONPATH=str(ROOT), PYTHONPYCACHEPREFIX=str(project / "cache"))
    assert not list((project / "cache").rglob("breaker*.pyc"))


def test_a_plain_import_in_a_shipped_file_is_refused(tmp_path: Path) -> None:
    from platoon.cli.shipped import _Loader

    file = tmp_path / "bad.py"
    file.write_text("import os\nimport tasks.recording\n")
    with pytest.raises(ImportError, match=r"bad\.py:2: write `from tasks\.recording import"):
        _Loader("_platoon_flows.bad", str(file)).get_code("_platoon_flows.bad")
