"""What recording costs a step: 200 short steps of four phases with the reporter, with and without Prefect.

    python benchmarks/prefect_overhead.py                          # SQLite (`platoon server`) and Postgres
    python benchmarks/prefect_overhead.py --database sqlite --steps 1000
    python benchmarks/prefect_overhead.py --url http://127.0.0.1:4200/api

Servers are started here, in a temporary directory, and ended. Postgres is Debian's (`apt-get install postgresql`), on
loopback; as root it runs as the user `nobody`. Prints milliseconds a step beyond the unrecorded ones, over the whole
run and each fifth of it, with the memory of the process. Both processes share this machine with whatever else runs.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path

import httpx

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from tasks.endpoint import Endpoint  # noqa: E402
from tasks.recorder import Recorder  # noqa: E402
from tasks.recording import phase, recorded, recording, step_finished  # noqa: E402
from tasks.reporting import Subject, reporting  # noqa: E402

PHASES = ("collect", "update", "publish", "record")
METRICS = {
    "train/batch/task_reward/avg": 0.5,
    "train/tasks/pass_at_1": 0.4,
    "train/tasks/pass_at_G": 0.8,
    "train/tasks/coverage": 1.0,
    "timing/batch_total": 0.2,
    **{f"train/workload/part_{number:03d}/avg": number / 3 for number in range(300)},
}
WARM = 20


@dataclass
class Measured:
    """Of each step: its seconds, MB of memory after it, and whether it ran while the API was left alone."""

    seconds: list[float] = field(default_factory=list)
    memory: list[float] = field(default_factory=list)
    left_out: list[bool] = field(default_factory=list)


async def train(steps: int, body: float, run_dir: Path, recorder: Recorder | None) -> Measured:
    found = Measured()

    async def part() -> None:
        await asyncio.sleep(body / len(PHASES))

    @recorded("train-step", "step-{step:05d}")
    async def train_step(step: int) -> None:
        for name in PHASES:
            await phase(name, part)

    @recorded("benchmark", "prefect-overhead", tags=("benchmark",))
    async def benchmark(steps: int) -> None:
        async with reporting(Subject("bench", "overhead", run_dir, 0, steps)) as reporter:
            for step in range(1, steps + 1):
                began = time.perf_counter()
                await train_step(step)
                step_finished(step, METRICS)
                reporter.step(step, METRICS)
                found.seconds.append(time.perf_counter() - began)
                found.memory.append(resident())
                found.left_out.append(recorder is not None and recorder.breaker.is_open)

    await benchmark(steps)
    return found


def measure(url: str | None, steps: int, body: float) -> None:
    """In a process of its own: the steps, as JSON on stdout."""
    with tempfile.TemporaryDirectory() as directory, recording(Endpoint(url, {}) if url else None) as recorder:
        found = asyncio.run(train(steps, body, Path(directory), recorder))
    print(json.dumps(asdict(found)), flush=True)
    os._exit(0)  # the events still under way are Prefect's to lose here


def measured(url: str | None, steps: int, body: float) -> Measured:
    command = [sys.executable, __file__, "--measure", url or "none", "--steps", str(steps), "--body", str(body)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    return Measured(**json.loads(done.stdout.splitlines()[-1]))


def report(label: str, found: Measured, plain: float) -> None:
    """The cost of a step from step 20 on, of all of them and of each fifth of the run, with the memory at its end."""
    cost = [1000 * (second - plain) for second in found.seconds[WARM:]]
    print(
        f"{label:>10}: cost of a step: median {statistics.median(cost):6.0f} ms  mean {statistics.mean(cost):6.0f} ms  "
        f"p95 {sorted(cost)[int(0.95 * len(cost))]:6.0f} ms  max {max(cost):6.0f} ms  "
        f"({sum(found.left_out)} steps unrecorded)",
        flush=True,
    )
    for fifth in range(5):
        first, end = (WARM + len(cost) * at // 5 for at in (fifth, fifth + 1))
        part = cost[first - WARM : end - WARM]
        print(
            f"{'':>10}  steps {first + 1:5}-{end:<5} median {statistics.median(part):6.0f} ms  "
            f"mean {statistics.mean(part):6.0f} ms  memory {found.memory[end - 1]:.0f} MB",
            flush=True,
        )


def resident() -> float:
    """MB of resident memory of this process."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6


@contextmanager
def sqlite_server(directory: Path) -> Iterator[str]:
    """The user's own server, with its state in `directory`."""
    environment = {**os.environ, "XDG_CACHE_HOME": str(directory)}
    command = [sys.executable, "-m", "platoon", "server"]
    subprocess.run([*command, "start"], cwd=ROOT, env=environment, check=True, stdout=sys.stderr)
    try:
        yield json.loads((directory / "platoon/server/server.json").read_text())["url"]
    finally:
        subprocess.run([*command, "stop"], cwd=ROOT, env=environment, check=True, stdout=sys.stderr)


@contextmanager
def postgres_server(directory: Path) -> Iterator[str]:
    """A Prefect server over a Postgres of its own, both on loopback."""
    with postgres(directory) as database:
        port = free_port()
        environment = {key: value for key, value in os.environ.items() if not key.startswith("PREFECT_")} | {
            "PREFECT_HOME": str(directory / "prefect"),
            "PREFECT_API_DATABASE_CONNECTION_URL": database,
            "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
            "DO_NOT_TRACK": "1",
        }
        command = [sys.executable, "-m", "prefect", "server", "start", "--host", "127.0.0.1", "--port", str(port)]
        with (directory / "server.log").open("wb") as log:
            server = subprocess.Popen(command, env=environment, stdout=log, stderr=log)
        try:
            url = f"http://127.0.0.1:{port}/api"
            wait_for(url, server)
            yield url
        finally:
            server.send_signal(signal.SIGINT)
            server.wait(30)


@contextmanager
def postgres(directory: Path) -> Iterator[str]:
    """A Postgres cluster below `directory`, as another user when this is root."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
    if not found:
        raise SystemExit("no Postgres below /usr/lib/postgresql: apt-get install postgresql")
    programs, port = found[-1].parent, free_port()
    data = directory / "postgres"
    data.mkdir()
    become: list[str] = []
    if os.getuid() == 0:
        become = ["setpriv", "--reuid=nobody", "--regid=nogroup", "--clear-groups"]
        directory.chmod(0o755)
        shutil.chown(data, "nobody", "nogroup")
    quiet = {"stdout": subprocess.DEVNULL, "check": True, "cwd": data}
    subprocess.run([*become, str(programs / "initdb"), "-D", str(data), "-U", "prefect", "-A", "trust"], **quiet)  # type: ignore[call-overload]
    options = f"-c listen_addresses=127.0.0.1 -c port={port} -c unix_socket_directories={data}"
    control = [*become, str(programs / "pg_ctl"), "-D", str(data), "-w", "-l", str(data / "log")]
    subprocess.run([*control, "-o", options, "start"], **quiet)  # type: ignore[call-overload]
    try:
        yield f"postgresql+asyncpg://prefect@127.0.0.1:{port}/postgres"
    finally:
        subprocess.run([*control, "-m", "fast", "stop"], **quiet)  # type: ignore[call-overload]


def wait_for(url: str, server: subprocess.Popen[bytes], seconds: float = 180.0) -> None:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if server.poll() is not None:
            raise SystemExit(f"the server ended with {server.returncode}")
        try:
            if httpx.get(f"{url}/health", timeout=1).is_success:
                return
        except httpx.HTTPError:
            time.sleep(0.2)
    raise SystemExit(f"no server at {url} after {seconds:.0f} s")


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--body", type=float, default=0.2, help="seconds that a step takes by itself")
    parser.add_argument("--database", choices=("sqlite", "postgres", "both"), default="both")
    parser.add_argument("--url", help="measure this API instead of starting servers")
    parser.add_argument("--measure", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.measure:
        measure(None if asked.measure == "none" else asked.measure, asked.steps, asked.body)
    plain = statistics.median(measured(None, asked.steps, asked.body).seconds)
    print(f"{'plain':>10}: {1000 * plain:.1f} ms a step, {asked.steps} steps", flush=True)
    servers = {"sqlite": sqlite_server, "postgres": postgres_server}
    chosen = servers if asked.database == "both" else {asked.database: servers[asked.database]}
    if asked.url:
        report("url", measured(asked.url, asked.steps, asked.body), plain)
        return
    for label, server in chosen.items():
        with ExitStack() as stack:
            directory = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            report(label, measured(stack.enter_context(server(directory)), asked.steps, asked.body), plain)


if __name__ == "__main__":
    main()
