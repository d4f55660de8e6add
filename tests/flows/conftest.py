"""One real Prefect server for the orchestrated tests of a session."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest


@dataclass
class PrefectServer:
    """A `prefect server` child on a port of its own; `kill` is SIGKILL, `start` brings it back on the same database."""

    home: Path
    port: int
    process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/api"

    def start(self) -> None:
        command = [sys.executable, "-m", "prefect", "server", "start", "--host", "127.0.0.1", "--port", str(self.port)]
        environment = {k: v for k, v in os.environ.items() if not k.startswith("PREFECT_")}
        environment |= {
            "PREFECT_HOME": str(self.home),
            "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
            "PREFECT_SERVER_UI_ENABLED": "false",
            "DO_NOT_TRACK": "1",
        }
        with (self.home / "server.log").open("ab") as output:
            self.process = subprocess.Popen(command, env=environment, stdout=output, stderr=output)

    def wait(self, seconds: float = 90.0) -> None:
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            assert self.process is not None
            assert self.process.poll() is None, (self.home / "server.log").read_text()[-2000:]
            try:
                if httpx.get(f"{self.url}/health", timeout=1).is_success:
                    return
            except httpx.HTTPError:
                time.sleep(0.1)
        raise TimeoutError(f"no server after {seconds} s: {(self.home / 'server.log').read_text()[-2000:]}")

    def kill(self, how: signal.Signals = signal.SIGKILL) -> None:
        if self.process is not None:
            self.process.send_signal(how)
            self.process.wait(30)
            self.process = None


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


@pytest.fixture(scope="session")
def prefect_api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PrefectServer]:
    server = PrefectServer(tmp_path_factory.mktemp("prefect"), free_port())
    server.start()
    server.wait()
    yield server
    server.kill()
