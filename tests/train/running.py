"""Runs of the small project: in this process, and as processes that are killed when they got somewhere."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, cast

from platoon.config import Loaded, add_project_path, load
from platoon.stats.jsonl import read_jsonl
from platoon.testing.training_service import FakeTrainingSession, Reply
from platoon.train.assembly import assemble
from platoon.train.checkpoints import newest_resumable
from platoon.train.components import start_components
from platoon.train.records import record_start
from platoon.train.run import RunResult, TrainingRun, plan_run
from platoon.train.stop import StopRequest

PROJECT = Path(__file__).parent / "project" / "run.yaml"
DEADLINE = 120.0


def loaded(log_path: Path, **overrides: Any) -> Loaded:
    """The project's config with its runs under `log_path`; overrides by dotted key with `__` for dots."""
    values = {key.replace("__", "."): value for key, value in overrides.items()}
    return load(PROJECT, {"log_path": str(log_path), **values})


def run_dir(log_path: Path) -> Path:
    return log_path / "e" / "t"


def command(log_path: Path, *overrides: str) -> list[str]:
    return [sys.executable, "-m", "platoon", "train", str(PROJECT), f"log_path={log_path}", *overrides]


def start(log_path: Path, *overrides: str, env: Mapping[str, str] | None = None) -> subprocess.Popen[str]:
    """The run as a process of its own process group."""
    log_path.mkdir(parents=True, exist_ok=True)
    with (log_path / "output").open("a") as output:
        return subprocess.Popen(
            command(log_path, *overrides),
            stdout=output,
            stderr=output,
            text=True,
            start_new_session=True,
            env={**os.environ, **(env or {})},
        )


def finish(log_path: Path, *overrides: str, env: Mapping[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    """Run to the end."""
    return subprocess.run(
        command(log_path, *overrides),
        capture_output=True,
        text=True,
        timeout=DEADLINE,
        env={**os.environ, **(env or {})},
        check=False,
    )


def kill_when(process: subprocess.Popen[str], reached: Callable[[], bool]) -> bool:
    """SIGKILL the process as soon as `reached()`; False when it ended before."""
    deadline = time.monotonic() + DEADLINE
    while not reached():
        if process.poll() is not None:
            return False
        if time.monotonic() > deadline:
            process.kill()
            raise AssertionError("the run got nowhere")
        time.sleep(0.002)
    process.send_signal(signal.SIGKILL)
    process.wait()
    return True


def wait_until(reached: Callable[[], bool], process: subprocess.Popen[str]) -> None:
    """Until the running process got somewhere. AssertionError when it ended before, or got nowhere."""
    deadline = time.monotonic() + DEADLINE
    while not reached():
        assert process.poll() is None, "the run ended early"
        assert time.monotonic() < deadline, "the run got nowhere"
        time.sleep(0.005)


@asynccontextmanager
async def over_fakes(
    log_path: Path, reply: Reply, **overrides: Any
) -> AsyncIterator[tuple[TrainingRun, FakeTrainingSession]]:
    """An open run over a training service in this process; `reply` is its policy. It goes on where it stood."""
    config = loaded(log_path, **overrides)
    add_project_path(config)
    run_dir(log_path).mkdir(parents=True, exist_ok=True)
    stop = StopRequest()
    stop.bind()
    session = FakeTrainingSession(reply, keep=True)
    async with AsyncExitStack() as stack:
        resume = newest_resumable(run_dir(log_path), config.train_config.train.num_minibatches)
        plan = await plan_run(config.train_config, run_dir(log_path), resume)
        record_start(config, plan, [], start_components(config))
        parts = await assemble(plan, config, cast(Any, session), 256, stop, stack)
        yield TrainingRun(plan, parts, stop), session


async def to_the_end(run: TrainingRun) -> RunResult:
    while not run.finished:
        await run.step()
    return await run.finish()


def lines(path: Path) -> int:
    return path.read_bytes().count(b"\n") if path.exists() else 0


def weights(directory: Path) -> dict[str, str]:
    """Digests of the newest checkpoint's weights and optimizer moments, as the service stored them."""
    path = read_jsonl(directory / "checkpoints.jsonl").rows[-1]["state_path"]
    for record in (json.loads(file.read_text()) for file in (directory / "service").glob("**/records/*.json")):
        if path == f"tinker://{record['model_id']}/{record['kind']}/{record['name']}":
            files = sorted((directory / "service").glob(f"**/data/{record['data']}/*.npy"))
            assert files
            return {file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in files}
    raise AssertionError(f"the service has no record of {path}")
