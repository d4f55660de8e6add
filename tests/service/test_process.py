"""The service as a child process: it starts, says why when it cannot, and never outlives its parent."""

from __future__ import annotations

import asyncio
import os
import select
import signal
import socket
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import numpy as np
import pytest

from platoon.service.__main__ import listen
from platoon.service.engines import load_engine
from platoon.service.numpy_engine.shape import initial
from platoon.service.numpy_engine.shipped import write_model
from platoon.train.local_service import LocalServiceError, local_service
from tests.service.small import NAME, SHAPE

PARENT = """
import asyncio, os, pathlib, sys, threading
from platoon.train.local_service import local_service

async def main():
    async with local_service(pathlib.Path(sys.argv[1]), sys.argv[2]) as url:
        {inside}
        print(url, flush=True)
        await asyncio.Event().wait()

def run():
    asyncio.run(main())

{start}
"""
PLAIN = {"inside": "pass", "start": "run()"}
# a forked child holds the pipe's other end open, and the thread that started the service is not the main one
BESIDE_A_FORK = {
    "inside": "os.fork() or (os.read(0, 1), os._exit(0))",
    "start": "thread = threading.Thread(target=run); thread.start(); thread.join()",
}


def children(pid: int) -> list[int]:
    """Processes below `pid` that run the service."""
    found = []
    for line in Path(f"/proc/{pid}/task").glob("*/children"):
        found += [int(child) for child in line.read_text().split()]
    return [c for c in found if b"platoon.service" in Path(f"/proc/{c}/cmdline").read_bytes()]


@pytest.mark.parametrize("parts", [PLAIN, BESIDE_A_FORK])
def test_killing_the_parent_ends_the_service(tmp_path: Path, parts: dict[str, str]) -> None:
    command = [sys.executable, "-c", PARENT.format(**parts), str(tmp_path), NAME]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        try:
            url = parent.stdout.readline().strip()
            assert httpx.get(f"{url}/api/v1/healthz").json() == {"status": "ok"}
            [child] = children(parent.pid)
            handle = os.pidfd_open(child)
        finally:
            parent.kill()
        ended, _, _ = select.select([handle], [], [], 10.0)
        os.close(handle)
        assert ended, "the service still runs 10 s after its parent was killed"
    with pytest.raises(httpx.ConnectError):
        httpx.get(f"{url}/api/v1/healthz")


def test_the_end_of_the_thread_that_started_it_is_not_the_end_of_its_parent(tmp_path: Path) -> None:
    with asyncio.Runner() as runner:
        context = local_service(tmp_path, NAME)
        runner.get_loop()
        with ThreadPoolExecutor(1) as threads:
            url = threads.submit(runner.run, context.__aenter__()).result()
        assert httpx.get(f"{url}/api/v1/healthz").json() == {"status": "ok"}
        runner.run(context.__aexit__(None, None, None))


async def test_the_service_ends_with_the_block_and_leaves_no_ready_file(tmp_path: Path) -> None:
    async with local_service(tmp_path, NAME) as url, httpx.AsyncClient() as client:
        assert (await client.get(f"{url}/api/v1/healthz")).status_code == 200
    async with httpx.AsyncClient() as client:
        with pytest.raises(httpx.ConnectError):
            await client.get(f"{url}/api/v1/healthz")
    assert not list(tmp_path.glob("ready-*"))
    assert url in (tmp_path / "service.log").read_text()


async def test_a_service_that_cannot_start_says_why(tmp_path: Path) -> None:
    with pytest.raises(
        LocalServiceError, match=r"(?s)code 78.*service\.log.*no model 'no-such-model'; it has platoon-tiny"
    ):
        async with local_service(tmp_path, "no-such-model"):
            pass


async def test_a_taken_port_is_one_line(tmp_path: Path) -> None:
    async with local_service(tmp_path / "a", NAME) as url:
        command = [sys.executable, "-m", "platoon.service", "--model", NAME, "--state", str(tmp_path / "b")]
        taken = [*command, "--port", url.rpartition(":")[2]]
        run = await asyncio.to_thread(subprocess.run, taken, capture_output=True, text=True, timeout=30)
    assert run.returncode == 1
    assert run.stderr.startswith("platoon: cannot listen on 127.0.0.1:")
    assert len(run.stderr.splitlines()) == 1


def test_importing_the_entry_point_loads_nothing_heavy() -> None:
    code = "import sys, platoon.service.__main__; sys.exit(bool({'numpy', 'tinker', 'starlette'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_a_server_that_is_told_to_stop_exits_cleanly(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "platoon.service", "--model", NAME, "--state", str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        assert "training service on http://127.0.0.1:" in server.stdout.readline()
        server.send_signal(signal.SIGTERM)
        assert server.wait(10) in (0, -signal.SIGTERM)


def test_answers_are_not_held_back_by_the_kernel() -> None:
    """asyncio switches Nagle's algorithm off only where the socket says that it is TCP."""
    with listen("127.0.0.1", 0) as listener:
        assert listener.proto == socket.IPPROTO_TCP


def test_engines_by_directory_and_by_function(tmp_path: Path) -> None:
    small = load_engine(NAME)
    write_model(tmp_path, SHAPE, np.asarray(initial(SHAPE, 1), np.float32))
    from_disk = load_engine(str(tmp_path))
    assert (from_disk.model_name, from_disk.vocab_size) == (str(tmp_path), small.vocab_size)
    with pytest.raises(ValueError, match="cannot be loaded"):
        load_engine("tests.service.small:missing")
    with pytest.raises(ValueError, match="it has platoon-tiny"):
        load_engine("another/model")
