"""The API is killed in the middle of a step, comes back, and is killed for good: nothing runs twice or not at all."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tasks.recording import SETTINGS
from tests.flows.outage import AFTER_STEPS, DOWN_STEPS, KILL_AT
from tests.flows.prefect_server import PrefectServer, start_server

ROOT = Path(__file__).resolve().parents[2]
pytestmark = [pytest.mark.orchestrated, pytest.mark.timeout(280)]


class Child:
    def __init__(self, url: str) -> None:
        command = [sys.executable, "-m", "tests.flows.outage", url]
        environment = {name: value for name, value in os.environ.items() if name not in SETTINGS}
        self.process = subprocess.Popen(
            command, cwd=ROOT, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def hear(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, f"the child ended with {self.process.wait(10)}"
        message: dict[str, Any] = json.loads(line)
        return message

    def tell(self, word: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(word + "\n")
        self.process.stdin.flush()


def test_an_outage_in_the_middle_of_a_step(tmp_path: Path) -> None:
    server = start_server(tmp_path)
    child = Child(server.url)
    try:
        result, left, seconds = through_the_outage(server, child)
    finally:
        child.process.kill()
        server.kill()

    steps = len(result["bodies"])
    assert result["result"] == "done"
    assert result["bodies"] == list(range(1, steps + 1)), "every body ran once, in order"
    assert steps >= KILL_AT + DOWN_STEPS + AFTER_STEPS
    end = KILL_AT + DOWN_STEPS
    lost = sum(result["after"][KILL_AT - 1 : end]) + sum(result["before"][KILL_AT:end])
    assert lost < 30.0, "the default client would stall more than a minute for each step"

    names = {run["name"]: run for run in left}
    states = {name: run["state_type"] for name, run in names.items()}
    assert "RUNNING" not in states.values()
    assert "PENDING" not in states.values()
    assert states["exp/outage"] == "COMPLETED"
    assert states[f"step-{KILL_AT:05d}"] == "COMPLETED", "the orphan was set right"
    assert "platoon" in names[f"step-{KILL_AT:05d}"]["state"]["message"]
    assert states[f"step-{steps:05d}"] == "COMPLETED", "it is recorded again"
    assert f"step-{KILL_AT + 2:05d}" not in states, "unrecorded while the API was away"
    assert all({"exp", "outage"} <= set(run["tags"]) for run in left)

    assert child.process.returncode == 7, "the exit guard keeps the run's code"
    assert seconds < 60.0, "the exit of Prefect would wait 7 s for each event it could not send"


def through_the_outage(server: PrefectServer, child: Child) -> tuple[dict[str, Any], list[dict[str, Any]], float]:
    assert child.hear() == {"inside": KILL_AT}
    server.kill()
    child.tell("killed")
    assert child.hear() == {"down": KILL_AT + DOWN_STEPS}
    server.start()
    server.wait()
    child.tell("back")
    result = child.hear()
    left = server.flow_runs()
    server.kill()
    began = time.monotonic()
    child.tell("leave")
    child.process.wait(60)
    return result, left, time.monotonic() - began
