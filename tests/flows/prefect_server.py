"""A real Prefect server for tests, and what they ask it."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import sqlite3
import subprocess
import sys
import tempfile
import time
from contextlib import closing
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import httpx


@dataclass
class PrefectServer:
    """A `prefect server` child on a port of its own; after `kill` (SIGKILL) `start` brings it back on its database."""

    home: Path
    port: int
    process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/api"

    def start(self) -> None:
        command = [sys.executable, "-m", "prefect", "server", "start", "--host", "127.0.0.1", "--port", str(self.port)]
        environment = {key: value for key, value in os.environ.items() if not key.startswith("PREFECT_")}
        environment |= {
            "PREFECT_HOME": str(self.home),
            "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
            "PREFECT_SERVER_UI_ENABLED": "false",
            "DO_NOT_TRACK": "1",
        }
        with (self.home / "server.log").open("ab") as output:
            self.process = subprocess.Popen(command, env=environment, stdout=output, stderr=output)

    def wait(self, seconds: float = 120.0) -> None:
        """Return once `/health` answers."""
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

    def kill(self) -> None:
        if self.process is not None:
            self.process.send_signal(signal.SIGKILL)
            self.process.wait(30)
            self.process = None

    def flow_runs(self, **filters: Any) -> list[dict[str, Any]]:
        """All flow runs that match, oldest name first."""
        body = {"limit": 200, "flow_runs": filters or None}
        reply = httpx.post(f"{self.url}/flow_runs/filter", json=body, timeout=30)
        reply.raise_for_status()
        return sorted(reply.json(), key=lambda run: str(run["name"]))


def start_server(home: Path) -> PrefectServer:
    """A running server, on a migrated database if there is one."""
    database_template(home / "prefect.db")
    server = PrefectServer(home, free_port())
    server.start()
    server.wait()
    keep_database(home / "prefect.db")
    return server


def database_template(target: Path) -> None:
    """Put a migrated, empty database in place, if an earlier session kept one: migrations take most of a start."""
    if _template().is_file():
        shutil.copy(_template(), target)


def keep_database(source: Path) -> None:
    """Keep a database that has just been migrated for later sessions."""
    if not _template().is_file():
        draft = _template().with_suffix(f".{os.getpid()}")
        with closing(sqlite3.connect(source)) as migrated, closing(sqlite3.connect(draft)) as copy:
            migrated.backup(copy)
        draft.replace(_template())


def _template() -> Path:
    return Path(tempfile.gettempdir()) / f"platoon-tests-{os.getuid()}-prefect-{version('prefect')}.db"


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])
