"""A real Prefect worker for tests, and runs of deployments that it executes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from tasks.recording import SETTINGS
from tests.flows.prefect_server import PrefectServer

ROOT = Path(__file__).resolve().parents[2]
SECONDS = 120.0
PROCESS_WORKER = (sys.executable, "-m", "prefect", "worker", "start", "--pool", "platoon")


def user_environment(server: PrefectServer) -> dict[str, str]:
    """The environment of a user's shell, without the settings of a training process."""
    kept = {name: value for name, value in os.environ.items() if name not in SETTINGS}
    return {**kept, "PREFECT_API_URL": server.url, "DO_NOT_TRACK": "1"}


def bootstrap(server: PrefectServer, *arguments: str) -> None:
    """Register the deployments and the automation as a user does."""
    environment = {**user_environment(server), "PLATOON_PROJECT": str(ROOT)}
    command = [sys.executable, "deployments/bootstrap.py", *arguments]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@contextmanager
def worker(server: PrefectServer, directory: Path, command: Sequence[str] = PROCESS_WORKER) -> Iterator[None]:
    """A worker, by default a process worker of the pool `platoon`."""
    environment = {**user_environment(server), "PREFECT_WORKER_QUERY_SECONDS": "1"}
    with (directory / "worker.log").open("ab") as output:
        process = subprocess.Popen(
            command, cwd=directory, env=environment, stdout=output, stderr=output, start_new_session=True
        )
    try:
        yield
    finally:
        os.killpg(process.pid, signal.SIGINT)
        try:
            process.wait(40)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


@dataclass
class Submitted:
    """A flow run of a deployment."""

    server: PrefectServer
    run_id: str

    def state(self) -> dict[str, Any]:
        state: dict[str, Any] = ask(self.server, "GET", f"flow_runs/{self.run_id}")["state"]
        return state

    def until(self, *types: str) -> dict[str, Any]:
        """Its state, once it is one of these."""
        wait_for(lambda: self.state()["type"] in types, lambda: str(self.state()))
        return self.state()

    def cancel(self) -> None:
        ask(self.server, "POST", f"flow_runs/{self.run_id}/set_state", {"state": {"type": "CANCELLING"}})


def submit(server: PrefectServer, deployment: str, config: Path, *overrides: str, resume: str = "auto") -> Submitted:
    found = ask(server, "GET", f"deployments/name/{deployment}")
    params = {"config": str(config), "overrides": list(overrides), "resume": resume}
    made = ask(server, "POST", f"deployments/{found['id']}/create_flow_run", {"parameters": {"params": params}})
    return Submitted(server, made["id"])


def ask(server: PrefectServer, method: str, path: str, body: dict[str, Any] | None = None) -> Any:
    """A request to the API; SQLite's write conflicts (503) are tried again, as Prefect's client does."""
    deadline = time.monotonic() + 30
    while True:
        reply = httpx.request(method, f"{server.url}/{path}", json=body, timeout=30)
        if reply.status_code != 503 or time.monotonic() > deadline:
            reply.raise_for_status()
            return reply.json()
        time.sleep(0.1)


def wait_for(reached: Callable[[], bool], about: Callable[[], str] = lambda: "", seconds: float = SECONDS) -> None:
    deadline = time.monotonic() + seconds
    while not reached():
        assert time.monotonic() < deadline, f"not within {seconds:.0f} s: {about()}"
        time.sleep(0.1)
