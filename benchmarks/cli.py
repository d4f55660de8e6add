"""How soon the command line answers: processor and wall seconds, and memory, of the commands people wait for.

    python benchmarks/cli.py [rounds]

Each command runs in a process of its own; the best of the rounds is printed beside its limit. Exits 1 over a limit.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

MIXTURE = """
log_path: runs
tinker_base_url: local
train: {model_name: platoon-tiny, renderer_name: chat_template, batch_size: 8, max_training_steps: 10}
environments:
  - {name: near, env: platoon-number-search, harness: platoon-react}
  - {name: far, env: platoon-number-search, harness: platoon-react, dataset_kwargs: {shuffle_seed: 1}}
"""
HEAVY = ("torch", "tinker", "prefect", "datasets", "openreward", "wandb", "polars", "pyarrow", "transformers")
_MEASURE = """
import json, resource, subprocess, sys, time
began = time.monotonic()
done = subprocess.run([sys.executable, "-m", "platoon", *sys.argv[1:]], stdout=subprocess.DEVNULL)
used = resource.getrusage(resource.RUSAGE_CHILDREN)
print(json.dumps([used.ru_utime + used.ru_stime, time.monotonic() - began, used.ru_maxrss / 1024, done.returncode]))
"""
_IMPORTED = """
import sys
from platoon.cli.app import run
code = run(sys.argv[1:])
print(code, *[name for name in {heavy!r} if name in sys.modules], file=sys.stderr)
"""


@dataclass(frozen=True)
class Limit:
    """A command and what it may take. `megabytes` 0: no limit."""

    command: tuple[str, ...]
    seconds: float
    megabytes: float = 0.0


def measure(command: tuple[str, ...], rounds: int) -> tuple[float, float, float]:
    """(processor seconds, wall seconds, megabytes) of the round with the fewest processor seconds."""
    best = (float("inf"), 0.0, 0.0)
    for _ in range(rounds):
        done = subprocess.run([sys.executable, "-c", _MEASURE, *command], capture_output=True, text=True, check=True)
        cpu, wall, megabytes, code = json.loads(done.stdout)
        if code != 0:
            raise SystemExit(f"platoon {' '.join(command)} ended with {code}: {done.stderr}")
        best = min(best, (cpu, wall, megabytes))
    return best


def heavy_imports(command: tuple[str, ...]) -> list[str]:
    """The heavy libraries that a command imported."""
    code = _IMPORTED.format(heavy=HEAVY)
    done = subprocess.run([sys.executable, "-c", code, *command], capture_output=True, text=True, check=True)
    return done.stderr.splitlines()[-1].split()[1:]


def main(rounds: int = 3) -> int:
    """Print one line a command; 1 when one is over its limit."""
    over = False
    with tempfile.TemporaryDirectory() as directory:
        config = Path(directory) / "mixture.yaml"
        config.write_text(MIXTURE, encoding="utf-8")
        limits = [
            Limit(("--version",), 0.2),
            Limit(("--help",), 0.6),
            Limit(("config", "validate", str(config)), 1.0, 150),
            Limit(("config", "validate", "--tasks", str(config)), 2.0),
        ]
        for limit in limits:
            cpu, wall, megabytes = measure(limit.command, rounds)
            heavy = heavy_imports(limit.command)
            fails = cpu > limit.seconds or 0 < limit.megabytes < megabytes or bool(heavy)
            over = over or fails
            name = " ".join(limit.command).replace(str(config), "MIXTURE")
            bound = f"limit {limit.seconds:.1f} s" + (f", {limit.megabytes:.0f} MB" if limit.megabytes else "")
            print(
                f"{name:<34} cpu {cpu:5.2f} s  wall {wall:5.2f} s  {megabytes:4.0f} MB  ({bound})"
                f"  heavy imports: {', '.join(heavy) or 'none'}{'  OVER' if fails else ''}"
            )
    return int(over)


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]) if len(sys.argv) > 1 else 3))
