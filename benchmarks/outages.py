"""What outages of Prefect's server cost a training run: killed and restarted three times during 60 steps.

    python benchmarks/outages.py [--steps 60] [--batch-size 18]

Trains the errand of the first run twice on the embedded service, recorded by a server of its own: once undisturbed,
once with the server killed (SIGKILL) three times: started again some steps later, and killed again once the run has
found it back. Prints whether the final weights are the same, the median step of both, and the seconds each outage cost.
Both runs share this machine with whatever else runs, the start of the server included: 5 s of processor time that a
server elsewhere would not take from the run (`--nice 5` shows about how much that is). A run that is too fast for three
outages says so: give longer steps by a larger batch.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import httpx

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from platoon.stats.jsonl import read_jsonl  # noqa: E402

OUTAGES, UP_STEPS, DOWN_STEPS = 3, 3, 2


@dataclass
class Server:
    """A Prefect server in a directory, on one port for all its lives."""

    home: Path
    nice: int
    port: int = 4377
    process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/api"

    def start(self) -> None:
        environment = {key: value for key, value in os.environ.items() if not key.startswith("PREFECT_")}
        environment |= {"PREFECT_HOME": str(self.home), "PREFECT_SERVER_ANALYTICS_ENABLED": "false"}
        environment |= {"PREFECT_SERVER_UI_ENABLED": "false", "DO_NOT_TRACK": "1"}
        prefect = [sys.executable, "-m", "prefect", "server", "start", "--host", "127.0.0.1", "--port", str(self.port)]
        command = ["nice", "-n", str(self.nice), *prefect]
        with (self.home / "server.log").open("ab") as log:
            self.process = subprocess.Popen(command, env=environment, stdout=log, stderr=log)

    def answers(self) -> bool:
        try:
            return httpx.get(f"{self.url}/health", timeout=1).is_success
        except httpx.HTTPError:
            return False

    def kill(self) -> None:
        assert self.process is not None
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()


@dataclass
class Observed:
    """When each step ended (monotonic seconds), as the run's progress lines said, and which steps began an outage."""

    ends: list[float] = field(default_factory=list)
    killed: list[int] = field(default_factory=list)
    back: list[int] = field(default_factory=list)

    def seconds(self) -> list[float]:
        return [after - before for before, after in zip(self.ends, self.ends[1:], strict=False)]


def train(directory: Path, server: Server, overrides: list[str], disturb: Callable[[int, Observed], None]) -> Observed:
    command = [sys.executable, "-m", "platoon", "train", "examples/first-run/train.yaml", "--orchestration", "require"]
    command += [f"log_path={directory}", "eval.every=0", *overrides]
    environment = {**os.environ, "PREFECT_API_URL": server.url}
    run = subprocess.Popen(command, cwd=ROOT, env=environment, stderr=subprocess.PIPE, text=True)
    observed = Observed()
    assert run.stderr is not None
    newest: deque[str] = deque(maxlen=30)
    for line in run.stderr:
        newest.append(line)
        if line.startswith("step "):
            observed.ends.append(time.monotonic())
            disturb(len(observed.ends), observed)
        elif "Prefect API" in line:
            print("   ", line.strip(), flush=True)
            if "is back" in line and len(observed.back) < len(observed.killed):
                observed.back.append(len(observed.ends))
    if (code := run.wait()) != 0:
        raise SystemExit(f"the run ended with {code}:\n{''.join(newest)}")
    return observed


def weights(run_dir: Path) -> str:
    """Digest of the newest checkpoint's arrays."""
    path = read_jsonl(run_dir / "checkpoints.jsonl").rows[-1]["state_path"]
    for record in (json.loads(file.read_text()) for file in (run_dir / "service").glob("**/records/*.json")):
        if path == f"tinker://{record['model_id']}/{record['kind']}/{record['name']}":
            files = sorted((run_dir / "service").glob(f"**/data/{record['data']}/*.npy"))
            return hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()
    raise SystemExit(f"no record of {path}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--batch-size", type=int, default=18, help="tasks a step")
    parser.add_argument("--nice", type=int, default=0, help="priority of the server, 19 being the lowest")
    asked = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that it ends its server, too
    overrides = [f"train.max_training_steps={asked.steps}", f"train.batch_size={asked.batch_size}"]
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        (directory / "server").mkdir()
        server = Server(directory / "server", asked.nice)
        if server.answers():
            raise SystemExit(f"something else listens on port {server.port}")
        server.start()
        while not server.answers():
            time.sleep(0.2)

        def disturb(step: int, observed: Observed) -> None:
            killed, back = observed.killed, observed.back
            if len(killed) == len(back) and len(killed) < OUTAGES and step >= (back or [0])[-1] + UP_STEPS:
                server.kill()
                killed.append(step)
            elif len(killed) > len(back) and step == killed[-1] + DOWN_STEPS:
                server.start()

        try:
            calm = train(directory / "calm", server, overrides, lambda step, observed: None)
            stormy = train(directory / "stormy", server, overrides, disturb)
        finally:
            server.kill()
        same = weights(directory / "calm/first-run/errand") == weights(directory / "stormy/first-run/errand")
    report(calm, stormy, same)


def report(calm: Observed, stormy: Observed, same: bool) -> None:
    print(f"same weights: {same}; {len(stormy.back)} of {OUTAGES} outages begun and ended during the run")
    first, second = calm.seconds(), stormy.seconds()
    outages = list(zip(stormy.killed, stormy.back, strict=False))
    down = {step for killed, back in outages for step in range(killed, back + 1)}
    median = statistics.median(first)
    up = [second for step, second in enumerate(second, start=1) if step not in down]
    print(
        f"median step: {1000 * median:.0f} ms undisturbed, {1000 * statistics.median(second):.0f} ms disturbed, "
        f"{1000 * statistics.median(up):.0f} ms of its steps with the server up"
    )
    for killed, back in outages:
        # the step in which the server died, those without it, and the first one that finds it back
        pairs = zip(second[killed - 1 : back + 1], first[killed - 1 : back + 1], strict=False)
        each = [after - before for after, before in pairs]
        worst, total = f"{max(each):+.2f} s at most in one step", f"{sum(each):+.2f} s over {len(each)} steps"
        print(f"outage at step {killed}: {worst}, {total}")
    sys.exit(0 if same and len(outages) == OUTAGES else 1)


if __name__ == "__main__":
    main()
