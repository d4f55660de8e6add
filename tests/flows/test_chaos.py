"""A whole training run whose Prefect server dies in the middle: the same weights, exit 0."""

from __future__ import annotations

from pathlib import Path

import pytest

from platoon.testing.audit import audit_run
from tests.flows.prefect_server import start_server
from tests.train.running import finish, lines, run_dir, start, wait_until, weights

pytestmark = pytest.mark.orchestrated
STEPS = ("train.max_training_steps=8", "eval.every=0")


def test_server_killed_in_the_middle_changes_nothing(tmp_path: Path) -> None:
    plain = finish(tmp_path / "plain", *STEPS)
    assert plain.returncode == 0, plain.stderr
    (tmp_path / "server").mkdir()
    server = start_server(tmp_path / "server")
    process = start(tmp_path / "recorded", *STEPS, "orchestration=require", env={"PREFECT_API_URL": server.url})
    events = run_dir(tmp_path / "recorded") / "tasks" / "events.jsonl"
    wait_until(lambda: lines(events) >= 3 * 3 * 3, process)  # three steps of three groups: draw, settle, fate
    server.kill()
    assert process.wait(240) == 0, (tmp_path / "recorded" / "output").read_text()
    assert weights(run_dir(tmp_path / "recorded")) == weights(run_dir(tmp_path / "plain"))
    audit = audit_run(run_dir(tmp_path / "recorded"))
    assert audit.problems == []
    assert audit.fates == dict.fromkeys(range(24), "consumed")
