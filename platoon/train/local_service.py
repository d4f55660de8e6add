"""The embedded training service as a child of this process, for as long as a block runs.

Promise: when the block is entered, requests are answered; when it is left, or this process dies in whatever way, the
child ends. Checkpoints below the state directory outlive it. It does not restart a child that fails.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from platoon.train.threads import in_thread

READY_SECONDS = 60.0
STOP_SECONDS = 2.0
LOOK_SECONDS = 0.01
TAIL_LINES = 20


class LocalServiceError(RuntimeError):
    """The embedded service did not start, or ended too early; the text holds the end of its log."""


@dataclass(frozen=True)
class LocalService:
    """A running embedded service."""

    url: str
    child: subprocess.Popen[bytes]
    log: Path

    async def ended(self) -> None:
        """Wait until it is gone, then raise LocalServiceError: what speaks to it would wait for ever."""
        code = await in_thread(self.child.wait)
        raise LocalServiceError(
            f"the local training service ended with code {code} while the run went on; run the same command again to "
            f"go on from the newest checkpoint; {_tail(self.log)}"
        )


@asynccontextmanager
async def local_service(state_dir: Path, model_name: str, *, key: str | None = None) -> AsyncIterator[str]:
    """The URL of a training service for `model_name` that runs until the block ends; see `running_service`."""
    async with running_service(state_dir, model_name, key=key) as service:
        yield service.url


@asynccontextmanager
async def running_service(state_dir: Path, model_name: str, *, key: str | None = None) -> AsyncIterator[LocalService]:
    """A training service for `model_name` that runs until the block ends.

    Its output goes to `<state_dir>/service.log`. LocalServiceError when it ends or does not answer within
    `READY_SECONDS`.
    """
    state_dir.mkdir(parents=True, exist_ok=True)
    log = state_dir / "service.log"
    ready = state_dir / f"ready-{uuid.uuid4().hex}"
    command = [sys.executable, "-m", "platoon.service", "--model", model_name, "--state", str(state_dir)]
    command += ["--ready", str(ready), "--die-with-parent"]
    environment = {**os.environ, **({"PLATOON_SERVICE_KEY": key} if key else {})}
    with log.open("ab") as output:
        # a session of its own: Ctrl-C reaches the trainer, which still has to save
        # and SIGTERM stays blocked in it: a cluster signals every process of a job, the trainer's last save needs it
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
        try:
            child = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=output, stderr=output, start_new_session=True, env=environment
            )
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
    try:
        yield LocalService(await _url(child, ready, log), child, log)
    finally:
        ready.unlink(missing_ok=True)
        await asyncio.to_thread(_stop, child)


async def _url(child: subprocess.Popen[bytes], ready: Path, log: Path) -> str:
    """What the child writes to its ready file, as soon as it is there."""
    deadline = asyncio.get_running_loop().time() + READY_SECONDS
    while not ready.exists():
        if (code := child.poll()) is not None:
            raise LocalServiceError(f"the local training service ended with code {code}; {_tail(log)}")
        if asyncio.get_running_loop().time() > deadline:
            raise LocalServiceError(
                f"the local training service did not answer within {READY_SECONDS:.0f} s; {_tail(log)}"
            )
        await asyncio.sleep(LOOK_SECONDS)
    return ready.read_text(encoding="utf-8")


def _stop(child: subprocess.Popen[bytes]) -> None:
    """The child ends when its standard input does; where something else holds that pipe, by SIGINT."""
    assert child.stdin is not None
    child.stdin.close()
    for number in (None, signal.SIGINT, signal.SIGKILL):
        if number is not None:
            child.send_signal(number)
        try:
            child.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            continue
        return
    child.wait()


def _tail(log: Path) -> str:
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines()[-TAIL_LINES:]
    return "\n".join([f"the end of {log}:", *lines])
