"""`platoon server`: one server for a user, found by runs, stopped by its user or when nobody is connected."""

from __future__ import annotations

import asyncio
import fcntl
import json
import os
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import httpx
import pytest

from platoon.cli import server
from platoon.cli.server_process import serve, take
from tasks.endpoint import choose_api
from tests.flows.prefect_server import database_template, free_port, keep_database


@pytest.fixture(autouse=True)
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("PREFECT_HOME", str(tmp_path / "nobody"))
    monkeypatch.delenv("PREFECT_API_URL", raising=False)
    return server.server_directory()


def command(*words: str) -> subprocess.Popen[str]:
    argv = [sys.executable, "-m", "platoon", "server", *words]
    return subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


@pytest.mark.orchestrated
def test_two_starts_at_once_give_one_server_that_runs_find(directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    directory.mkdir(parents=True)
    database_template(directory / "prefect.db")
    port = free_port()
    commands = [command("start", "--port", str(port)) for _ in range(2)]
    try:
        said = [one.communicate(timeout=200) for one in commands]
        assert [one.returncode for one in commands] == [0, 0], said
        assert sorted("runs already" in out for out, _ in said) == [False, True]
        assert all(f"http://127.0.0.1:{port}" in out for out, _ in said)
        keep_database(directory / "prefect.db")

        assert server.status() == 0
        chosen = choose_api("require")
        assert chosen is not None
        assert chosen.url == f"http://127.0.0.1:{port}/api"
        assert f"http://127.0.0.1:{port}/api" in httpx.get(f"http://127.0.0.1:{port}/ui-settings").text
    finally:
        assert server.stop() == 0
    assert server.status() == 1
    assert server.stop() == 0
    assert choose_api("auto") is None
    assert "not running" in capsys.readouterr().out


def test_a_stale_record_is_not_a_server(directory: Path) -> None:
    directory.mkdir(parents=True)
    (directory / "running.lock").touch()
    record = {"url": "http://127.0.0.1:1/api", "pid": os.getpid(), "started": time.time()}
    (directory / "server.json").write_text(json.dumps(record))
    assert server.find() is None
    assert server.status() == 1
    assert server.stop() == 0, "and this process, whose id it names, still lives"


def test_a_process_that_does_not_answer_is_reported(directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    directory.mkdir(parents=True)
    (directory / "server.json").write_text(
        json.dumps({"url": "http://127.0.0.1:1/api", "pid": os.getpid(), "started": time.time()})
    )
    with (directory / "running.lock").open("ab") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert server.status() == 1
    assert "does not answer" in capsys.readouterr().out


def test_a_port_in_use_is_refused_at_once(directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        assert server.start(port=port) == 1
    assert f"port {port} is in use" in capsys.readouterr().err
    assert server.find() is None


@pytest.mark.orchestrated
def test_a_server_that_cannot_start_is_reported_with_its_log(
    directory: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    directory.mkdir(parents=True)
    (directory / "prefect.db").write_bytes(b"not a database, and longer than a header of one hundred bytes" * 9)
    assert server.start() == 1
    error = capsys.readouterr().err
    assert "did not start" in error
    assert str(directory / "server.log") in error
    assert server.find() is None


def test_the_lock_is_taken_in_spite_of_a_look(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    with path.open("ab") as mine, path.open("ab") as look:
        fcntl.flock(look, fcntl.LOCK_SH)
        assert not take(mine, seconds=0.1)
        fcntl.flock(look, fcntl.LOCK_UN)
        assert take(mine, seconds=0.1)


async def answer(scope: Any, receive: Any, send: Any) -> None:
    """An ASGI app whose reply to /hold waits until the client goes."""
    if scope["type"] == "lifespan":
        while (message := await receive())["type"] != "lifespan.shutdown":
            await send({"type": f"{message['type']}.complete"})
        await send({"type": "lifespan.shutdown.complete"})
        return
    await send({"type": "http.response.start", "status": 200, "headers": []})
    if scope["path"] == "/hold":
        await send({"type": "http.response.body", "body": b"held", "more_body": True})
        while (await receive())["type"] != "http.disconnect":
            pass
    await send({"type": "http.response.body", "body": b""})


async def test_an_idle_server_ends_and_an_open_connection_keeps_it(tmp_path: Path) -> None:
    idle = 0.5
    listener = server._listen(0)
    assert listener is not None
    port = listener.getsockname()[1]
    serving = asyncio.create_task(serve(answer, tmp_path, listener, idle))
    record = tmp_path / "server.json"
    async with asyncio.timeout(20), httpx.AsyncClient() as client:
        while not record.exists():  # noqa: ASYNC110 (the file is the signal)
            await asyncio.sleep(0.01)
        assert json.loads(record.read_text())["pid"] == os.getpid()
        async with client.stream("GET", f"http://127.0.0.1:{port}/hold") as held:
            assert held.status_code == 200
            done, _ = await asyncio.wait({serving}, timeout=4 * idle)
            assert not done, "somebody is connected"
        began = time.monotonic()
        await serving
    assert time.monotonic() - began < 4 * idle + 30
    assert not record.exists()
