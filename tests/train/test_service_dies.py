"""The embedded service dies while a run goes on: the run ends soon, says so, and goes on from its checkpoint later."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

from platoon.testing.audit import audit_run
from tests.train.running import finish, lines, run_dir, start


def service_of(parent: int) -> int:
    """The pid of the embedded service that a run started."""
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and b"platoon.service" in (entry / "cmdline").read_bytes():
                status = (entry / "stat").read_text()
                if int(status.rpartition(")")[2].split()[1]) == parent:
                    return int(entry.name)
        except (OSError, ValueError):
            continue
    raise AssertionError("the run has no service")


def test_run_ends_with_a_message_and_can_go_on(tmp_path: Path) -> None:
    log = run_dir(tmp_path) / "tasks/events.jsonl"
    process = start(tmp_path, "train.max_training_steps=1000", "eval.every=0")
    deadline = time.monotonic() + 60
    while lines(log) < 12:
        assert process.poll() is None, (tmp_path / "output").read_text()
        assert time.monotonic() < deadline
        time.sleep(0.002)
    os.kill(service_of(process.pid), signal.SIGKILL)
    assert process.wait(20) == 1
    said = (tmp_path / "output").read_text()
    assert "the local training service ended with code -9 while the run went on" in said
    assert "run the same command again" in said
    again = finish(tmp_path, "eval.every=0")
    assert again.returncode == 0, again.stderr
    audit = audit_run(run_dir(tmp_path))
    assert audit.problems == []
