"""Runs that are killed at random moments and started again: is anything lost, repeated or changed?

    python benchmarks/kills.py --runs 100 --kills 3 --work /tmp/kills

Each run trains the small project of the tests on the embedded service, is SIGKILLed up to `--kills` times after a
random time, and is resumed to its end. Reported per run: kills, positions used once, statistics equal to a
recomputation from the group table bit for bit, weights and optimizer moments equal to an undisturbed run's. Exit code 1
on any miss.
"""

from __future__ import annotations

import argparse
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from platoon.testing.audit import audit_run
from platoon.testing.recompute import statistics_problems
from tests.train.running import finish, run_dir, start, weights

POSITIONS = 18


def killed_run(path: Path, kills: int, chance: random.Random, longest: float) -> int:
    """Kill the run up to `kills` times, each after a random time, then let it end. How often it was killed."""
    killed = 0
    for _ in range(kills):
        process = start(path)
        try:
            process.wait(chance.uniform(0.05, longest))
            return killed
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGKILL)
            process.wait()
            killed += 1
    return killed


def problems_of(path: Path, undisturbed: dict[str, str]) -> list[str]:
    """What a finished run did wrong."""
    directory = run_dir(path)
    audit = audit_run(directory)
    found = list(audit.problems)
    if audit.fates != dict.fromkeys(range(POSITIONS), "consumed"):
        found.append(f"fates of the positions: {audit.fates}")
    found += statistics_problems(directory)
    if weights(directory) != undisturbed:
        found.append("the weights differ from the undisturbed run's")
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=100)
    parser.add_argument("--kills", type=int, default=3)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--work", type=Path, default=Path("/tmp/platoon-kills"))
    options = parser.parse_args()
    shutil.rmtree(options.work, ignore_errors=True)
    began = time.monotonic()
    done = finish(options.work / "undisturbed")
    seconds = time.monotonic() - began
    assert done.returncode == 0, done.stderr
    expected = weights(run_dir(options.work / "undisturbed"))
    print(f"an undisturbed run takes {seconds:.1f} s", flush=True)
    missed = total = 0
    for number in range(options.runs):
        path = options.work / f"run-{number:03d}"
        kills = killed_run(path, options.kills, random.Random(options.seed * 1000 + number), seconds)
        done = finish(path)
        failed = [f"exit {done.returncode}: {done.stderr[-500:]}"] if done.returncode else []
        found = failed or problems_of(path, expected)
        missed += bool(found)
        total += kills
        print(f"run {number}: {kills} kills, {'; '.join(found) or 'exact'}", flush=True)
        if not found:
            shutil.rmtree(path)
    print(f"{options.runs} runs, {total} kills, {missed} with problems, {time.monotonic() - began:.0f} s")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
