"""What a step costs when the model costs next to nothing: 50 steps of examples/first-run/trivial.yaml.

    python benchmarks/first_run.py              # orchestration off, then with a Prefect server of its own

Each run is a `platoon train` in a temporary directory. Prints start-up, wall time a step, and the time of each phase,
read from the run's metrics table. Exits with 1 when a bound is missed.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import polars as pl

ROOT = Path(__file__).resolve().parent.parent
CONFIG = ROOT / "examples/first-run/trivial.yaml"
STEPS = 50
UNRECORDED_SECONDS = 15.0  # bound: all steps, after start-up, with orchestration off
PREFECT_SECONDS = 0.3  # bound: median of a step's wall time with a local server, minus the median without
PLATOON = (sys.executable, "-m", "platoon")


@dataclass(frozen=True)
class Run:
    """One run. Seconds: until the first step could begin, of every step (wall), and of each phase of every step."""

    start_up: float
    walls: Sequence[float]
    phases: Mapping[str, Sequence[float]]

    @property
    def median(self) -> float:
        return statistics.median(self.walls)


def train(work: Path, name: str, mode: str, steps: int, environment: Mapping[str, str]) -> Run:
    """Run the trivial example to its end; SystemExit with its output when it fails."""
    command = [*PLATOON, "train", str(CONFIG), f"log_path={work}", f"stats.trial_name={name}"]
    command += [f"train.max_training_steps={steps}", f"--orchestration={mode}"]
    began = time.monotonic()
    ready, lines = began, []
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=dict(environment)) as process:
        assert process.stderr is not None
        for line in process.stderr:
            lines.append(line)
            if "ready after" in line:
                ready = time.monotonic()
    if process.returncode:
        raise SystemExit("".join([*lines, f"{' '.join(command)} ended with {process.returncode}"]))
    return measured(work / "first-run" / name, ready - began, steps)


def measured(run_dir: Path, start_up: float, steps: int) -> Run:
    """Walls and phases of the steps that the metrics table holds."""
    table = pl.read_parquet(run_dir / "metrics").filter(pl.col("step") >= 1)

    def column(key: str) -> list[float]:
        return table.filter(pl.col("key") == key).sort("step")["value"].to_list()

    elapsed = column("time/elapsed_seconds")
    assert len(elapsed) == steps, f"{run_dir}: {len(elapsed)} steps in the metrics table, {steps} were run"
    walls = [after - before for before, after in zip([0.0, *elapsed], elapsed, strict=False)]
    draws = zip(column("train/sampler/decision_ms"), column("train/sampler/draws"), strict=True)
    phases = {
        "draw": [milliseconds * count / 1e3 for milliseconds, count in draws],
        "rollout": column("timing/rollouts"),
        "datums": column("timing/datums"),
        "service": column("timing/update"),
        "save": column("timing/publish"),
    }
    return Run(start_up, walls, phases)


@contextmanager
def prefect_server(work: Path) -> Iterator[dict[str, str]]:
    """A local server with a database of its own; the environment in which runs find it and no other."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PREFECT_", "PLATOON_"))}
    environment |= {"XDG_CACHE_HOME": str(work / "cache"), "PREFECT_HOME": str(work / "prefect")}
    subprocess.run([*PLATOON, "server", "start"], env=environment, check=True)
    try:
        yield environment
    finally:
        subprocess.run([*PLATOON, "server", "stop"], env=environment, check=True)


def report(title: str, run: Run) -> None:
    total = sum(run.walls)
    print(f"{title}: start-up {run.start_up:.1f} s, {len(run.walls)} steps in {total:.1f} s")
    print(f"  {'':10}{'median ms':>10}{'mean ms':>10}{'share':>8}")
    # a decision is made while rollouts are awaited: its time lies within theirs
    rest = [wall - sum(parts) for wall, *parts in zip(run.walls, *list(run.phases.values())[1:], strict=True)]
    for name, seconds in {**run.phases, "rest": rest, "wall": run.walls}.items():
        median, mean = 1e3 * statistics.median(seconds), 1e3 * statistics.mean(seconds)
        print(f"  {name:10}{median:10.1f}{mean:10.1f}{100 * sum(seconds) / total:7.1f}%")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=STEPS)
    steps = parser.parse_args().steps
    with tempfile.TemporaryDirectory(prefix="platoon-bench-") as directory:
        work = Path(directory)
        off = train(work, "off", "off", steps, os.environ)
        with prefect_server(work) as environment:
            recorded = train(work, "prefect", "require", steps, environment)
    report("orchestration off", off)
    report("with a local Prefect server", recorded)
    cost = recorded.median - off.median
    mean_cost = statistics.mean(recorded.walls) - statistics.mean(off.walls)
    bound = UNRECORDED_SECONDS * steps / STEPS
    print(f"steps without Prefect: {sum(off.walls):.1f} s (bound {bound:.1f} s)")
    print(f"Prefect, median a step: {cost:.3f} s (bound {PREFECT_SECONDS} s); mean {mean_cost:.3f} s")
    return int(sum(off.walls) > bound or cost > PREFECT_SECONDS)


if __name__ == "__main__":
    sys.exit(main())
