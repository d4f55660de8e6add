"""`platoon server start | status | stop`: one local Prefect server for this user.

It is the one process that outlives its command. It keeps its database, log and record under
`$XDG_CACHE_HOME/platoon/server`, listens on 127.0.0.1 and stops by itself after 30 minutes without a client.
A lock file held by the server says whether it runs, so a stale record or a reused process id misleads nobody.
"""

from __future__ import annotations

import fcntl
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import cyclopts
import httpx

from platoon.cli.shipped import load

START_SECONDS = 180.0
STOP_SECONDS = 20.0
PORT = 4200


@dataclass(frozen=True)
class Running:
    """A server that holds the lock: the API's address, its process and when it started (seconds since 1970)."""

    url: str
    pid: int
    started: float

    @property
    def ui(self) -> str:
        return self.url.removesuffix("/api")


app = cyclopts.App(name="server", help="One local Prefect server for this user.")


@app.command
def start(port: int | None = None, idle_minutes: float = 30.0) -> int:
    """Start the server and wait until it answers; say so if it runs already. Returns the exit code.

    `port`: default 4200, or a free one if that is taken. `idle_minutes`: 0 keeps it running for ever.
    """
    directory = server_directory()
    directory.mkdir(parents=True, exist_ok=True)
    with _locked(directory / "start.lock"):
        if (running := find()) is not None:
            print(f"platoon server runs already: {running.ui} (pid {running.pid})")
            return 0
        listener = _listen(port) if port else _listen(PORT) or _listen(0)
        if listener is None:
            print(f"platoon: port {port} is in use; choose another one or leave out --port", file=sys.stderr)
            return 1
        began = time.monotonic()
        with listener:
            child = _spawn(directory, listener, idle_minutes)
        failure = _wait(child, began + START_SECONDS)
        if failure:
            child.kill()
            child.wait()
            print(f"platoon: the server did not start: {failure}\n  log: {directory / 'server.log'}", file=sys.stderr)
            return 1
        running = find()
        assert running is not None
        print(f"platoon server: {running.ui} (started in {time.monotonic() - began:.1f} s)")
    return 0


@app.command
def status() -> int:
    """Print where the server is. Exit code 0 when it runs and answers, else 1."""
    running = find()
    if running is None:
        print("platoon server: not running")
        return 1
    if not _answers(running.url):
        print(f"platoon server: pid {running.pid} runs but {running.url}/health does not answer")
        return 1
    minutes = (time.time() - running.started) / 60
    print(f"platoon server: {running.ui} (pid {running.pid}, up {minutes:.0f} min)")
    return 0


@app.command
def stop() -> int:
    """End the server, by force after 20 s. Exit code 0, also when none ran."""
    running = find()
    if running is None:
        print("platoon server: not running")
        return 0
    os.kill(running.pid, signal.SIGTERM)
    if not _ended(running, STOP_SECONDS):
        os.kill(running.pid, signal.SIGKILL)
        if not _ended(running, STOP_SECONDS):
            print(f"platoon: the server (pid {running.pid}) does not end", file=sys.stderr)
            return 1
    (server_directory() / "server.json").unlink(missing_ok=True)
    print("platoon server: stopped")
    return 0


def server_directory() -> Path:
    path: Path = load("tasks.endpoint").server_directory()
    return path


def find() -> Running | None:
    """The server of this user, if one holds the lock and has written its record."""
    directory = server_directory()
    try:
        with (directory / "running.lock").open("rb") as lock:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
            return None  # nobody holds it
    except FileNotFoundError:
        return None
    except BlockingIOError:
        pass
    try:
        record: dict[str, Any] = json.loads((directory / "server.json").read_text())
        return Running(record["url"], int(record["pid"]), float(record["started"]))
    except (OSError, ValueError, KeyError):
        return None


def _spawn(directory: Path, listener: socket.socket, idle_minutes: float) -> subprocess.Popen[bytes]:
    """The server process, in a session of its own, with our settings and none of the user's Prefect settings.

    It inherits the listening socket: Prefect takes seconds to import, and the port might be gone by then.
    """
    port = listener.getsockname()[1]
    environment = {key: value for key, value in os.environ.items() if not key.startswith("PREFECT_")}
    package_root = str(Path(__file__).resolve().parents[2])
    paths = [package_root, *filter(None, [environment.get("PYTHONPATH")])]
    environment |= {
        "PYTHONPATH": os.pathsep.join(paths),
        "PREFECT_HOME": str(directory),
        "PREFECT_SERVER_API_PORT": str(port),
        "PREFECT_SERVER_UI_API_URL": f"http://127.0.0.1:{port}/api",
        "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
        "PREFECT_SERVER_UI_SHOW_PROMOTIONAL_CONTENT": "false",
        "DO_NOT_TRACK": "1",
    }
    (directory / "server.json").unlink(missing_ok=True)
    arguments = [str(directory), str(listener.fileno()), str(idle_minutes * 60)]
    with (directory / "server.log").open("wb") as output:
        return subprocess.Popen(
            [sys.executable, "-m", "platoon.cli.server_process", *arguments],
            pass_fds=[listener.fileno()],
            cwd=directory,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )


def _wait(child: subprocess.Popen[bytes], deadline: float) -> str:
    """Empty once the child answers, else why it does not."""
    while time.monotonic() < deadline:
        if child.poll() is not None:
            return f"it ended with exit code {child.returncode}"
        running = find()
        if running is not None and running.pid == child.pid and _answers(running.url):
            return ""
        time.sleep(0.05)
    return f"no answer within {START_SECONDS:.0f} s"


def _ended(running: Running, seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if find() is None:
            return True
        time.sleep(0.05)
    return False


def _answers(url: str) -> bool:
    try:
        return httpx.get(f"{url}/health", timeout=2.0).is_success
    except httpx.HTTPError:
        return False


def _listen(port: int) -> socket.socket | None:
    """A socket that listens on 127.0.0.1; None when the port is taken. Port 0: any free one."""
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind(("127.0.0.1", port))
        listener.listen(128)
    except OSError:
        listener.close()
        return None
    return listener


@contextmanager
def _locked(path: Path) -> Iterator[IO[bytes]]:
    """Two commands that start a server at once take turns; the second finds the first one's."""
    with path.open("ab") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield lock
