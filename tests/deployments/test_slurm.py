"""`train.sbatch` on a cluster of one node: submitted, stopped by its time limit, requeued, finished."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from platoon.stats.jsonl import read_jsonl
from platoon.testing.audit import audit_run
from tests.train.running import PROJECT, lines, run_dir

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "deployments" / "slurm" / "train.sbatch"
STEPS = 12
EVENTS_A_STEP = 9


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Commands of the fake cluster on PATH; its directory."""
    commands, directory = tmp_path / "bin", tmp_path / "slurm"
    commands.mkdir()
    directory.mkdir()
    for name in ("sbatch", "scontrol"):
        command = commands / name
        fake = Path(__file__).with_name("fake_slurm.py")
        command.write_text(f'#!/bin/sh\nexec "{sys.executable}" "{fake}" {name} "$@"\n')
        command.chmod(command.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", f"{commands}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("FAKE_SLURM", str(directory))
    monkeypatch.setenv("PLATOON", str(Path(sys.executable).with_name("platoon")))
    return directory


def sbatch(*arguments: str) -> int:
    done = subprocess.run(
        ["sbatch", "--time=00:10:00", str(SCRIPT), *arguments], capture_output=True, text=True, check=True, cwd=ROOT
    )
    return int(done.stdout.split()[-1])


def until(reached: Callable[[], bool], log: Path) -> None:
    deadline = time.monotonic() + 150
    while not reached():
        assert time.monotonic() < deadline, log.read_text()[-3000:] if log.exists() else "no output"
        time.sleep(0.02)


def outcome(cluster: Path, job: int) -> dict[str, object]:
    done = cluster / f"done-{job}.json"
    until(done.exists, cluster / f"platoon-{job}.log")
    found: dict[str, object] = json.loads(done.read_text())
    return found


def test_the_time_limit_saves_requeues_and_finishes(cluster: Path, tmp_path: Path) -> None:
    job = sbatch(str(PROJECT), f"log_path={tmp_path}", f"train.max_training_steps={STEPS}", "eval.every=0")
    events = run_dir(tmp_path) / "tasks" / "events.jsonl"
    log = cluster / f"platoon-{job}.log"
    until(lambda: lines(events) >= 3 * EVENTS_A_STEP, log)
    (cluster / f"near-{job}").touch()
    assert outcome(cluster, job) == {"code": 0, "killed": False, "starts": 2}, log.read_text()
    names = [row["name"] for row in read_jsonl(run_dir(tmp_path) / "checkpoints.jsonl").rows]
    assert any(name.endswith("_interrupted") for name in names)
    assert names[-1] == "final"
    audit = audit_run(run_dir(tmp_path))
    assert audit.problems == []
    assert audit.fates == dict.fromkeys(range(3 * STEPS), "consumed")


def test_a_configuration_error_is_the_jobs_exit_code_and_no_requeue(cluster: Path, tmp_path: Path) -> None:
    job = sbatch(str(PROJECT), f"log_path={tmp_path}", "train.no_such_key=1")
    assert outcome(cluster, job) == {"code": 78, "killed": False, "starts": 1}
