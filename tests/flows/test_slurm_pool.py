"""Deployed runs through prefect-slurm: each a job of slurmrestd, which runs the script for real.

prefect-slurm lives in an environment of its own, whose directory PLATOON_TEST_SLURM names:
    uv venv DIR && uv pip install --python DIR/bin/python prefect-slurm 'prefect>=3.9,<3.10'
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import pytest

from platoon.stats.jsonl import read_jsonl
from platoon.testing.audit import audit_run
from tests.deployments.fake_slurmrestd import TOKEN, slurmrestd
from tests.flows.prefect_server import PrefectServer
from tests.flows.worker import bootstrap, submit, wait_for, worker
from tests.train.running import PROJECT, lines, run_dir

DIRECTORY = Path(os.environ.get("PLATOON_TEST_SLURM", "/nowhere"))
pytestmark = [
    pytest.mark.orchestrated,
    pytest.mark.timeout(290),
    pytest.mark.skipif(
        not (DIRECTORY / "bin" / "prefect").is_file(),
        reason="PLATOON_TEST_SLURM names no environment with prefect-slurm",
    ),
]
EVENTS_A_STEP = 9
STEPS = 14


def test_a_job_at_its_time_limit_saves_and_goes_on_as_the_next_job(
    prefect_api: PrefectServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    activate = Path(sys.executable).with_name("activate")
    monkeypatch.setenv("PLATOON_ENVIRONMENT", str(activate))
    monkeypatch.setenv("PREFECT_SLURM_USER_NAME", "tester")
    monkeypatch.setenv("PREFECT_SLURM_USER_TOKEN", TOKEN)
    (tmp_path / "jobs").mkdir()
    events = run_dir(tmp_path) / "tasks" / "events.jsonl"
    with slurmrestd(tmp_path / "jobs") as (address, node):
        monkeypatch.setenv("PREFECT_SLURM_API_URL", address)
        bootstrap(prefect_api, "--file", "deployments/slurm/prefect.yaml")
        command = [str(DIRECTORY / "bin" / "prefect"), "worker", "start", "--pool", "platoon-slurm", "--type", "slurm"]
        with worker(prefect_api, tmp_path, command):
            overrides = (f"log_path={tmp_path}", f"train.max_training_steps={STEPS}", "eval.every=0")
            run = submit(prefect_api, "train/slurm", PROJECT, *overrides)
            wait_for(lambda: lines(events) >= 3 * EVENTS_A_STEP, lambda: str(run.state()))
            node.signal(1, signal.SIGTERM)
            wait_for(lambda: node.state(1) != "RUNNING", lambda: node.output(1)[-2000:])
            saved = read_jsonl(run_dir(tmp_path) / "checkpoints.jsonl").rows[-1]
            assert saved["name"].endswith("_interrupted"), node.output(1)[-3000:]
            state = run.until("COMPLETED", "CRASHED", "FAILED", "CANCELLED")
            assert state["type"] == "COMPLETED", (state, node.output(len(node.specs))[-3000:])
        assert len(node.specs) == 2, "scheduled again by itself, as a job of its own"
        assert node.specs[0]["cpus_per_task"] == 8
        assert node.specs[0]["time_limit"] == {"set": True, "number": 24 * 60}
    audit = audit_run(run_dir(tmp_path))
    assert audit.problems == []
    assert audit.fates == dict.fromkeys(range(3 * STEPS), "consumed")
