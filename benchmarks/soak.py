"""A long run on fakes: does memory stay flat, and the number of open files?

    python benchmarks/soak.py --steps 2000 --work /tmp/soak

The real loop, dispatcher, gateway, rollouts, credit, statistics, tables and checkpoints, over a training service in the
process that answers at once. Prints resident memory, Python's own blocks and open files every 100 steps. Exit code 1
when the second half of the run grows by more than `--mib`, or opens files that it does not close. Resident memory moves
in jumps of some MiB: allocators keep what threads that wrote a checkpoint freed.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import os
import random
import shutil
import sys
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, cast

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from platoon.config import add_project_path
from platoon.gateway.sampling import Sampled, SamplingParams
from platoon.render import build_renderer
from platoon.stats.tables import read_table
from platoon.testing.training_service import FakeTrainingSession, Reply
from platoon.train.assembly import assemble
from platoon.train.client_metrics import resident_bytes
from platoon.train.run import TrainingRun, plan_run
from platoon.train.stop import StopRequest
from tests.train.running import loaded, run_dir

EVERY = 100


def guesses(chance: random.Random) -> Reply:
    """A policy that says one of the first tasks' words, or the right one, and stops."""
    renderer = build_renderer("platoon-tiny", "chat_template", {})
    words = [renderer.encode(word) for word in ("Ada", "Ben", "Cy", "Dan")]

    def reply(prompt: Sequence[int], params: SamplingParams, version: int) -> Sampled:
        tokens = [*chance.choice(words), int(renderer.stop[0])]
        return Sampled(tokens, [-1.0] * len(tokens), "stop")

    return reply


def open_files() -> int:
    return len(os.listdir("/proc/self/fd"))


async def soak(work: Path, steps: int, overrides: dict[str, Any]) -> list[tuple[int, float, int]]:
    """(step, MiB resident, open files) every 100 steps."""
    config = loaded(work, train__max_training_steps=steps, train__max_staleness=2, **overrides)
    add_project_path(config)
    directory = run_dir(work)
    directory.mkdir(parents=True)
    stop = StopRequest()
    stop.bind()
    seen: list[tuple[int, float, int]] = []
    async with AsyncExitStack() as stack:
        plan = await plan_run(config.train_config, directory, None)
        session = cast(Any, FakeTrainingSession(guesses(random.Random(0))))
        run = TrainingRun(plan, await assemble(plan, config, session, 256, stop, stack), stop)
        began = time.monotonic()
        while not run.finished:
            report = await run.step()
            if report is not None and report.step % EVERY == 0:
                if not seen:
                    read_table(directory, "metrics")  # the first read of a table brings its reader in, once
                gc.collect()
                seen.append((report.step, (resident_bytes() or 0) / 2**20, open_files()))
                rate = report.step / (time.monotonic() - began)
                step, mib, files = seen[-1]
                blocks = sys.getallocatedblocks()
                print(f"step {step}: {mib:.1f} MiB, {blocks} blocks, {files} files, {rate:.0f} steps/s", flush=True)
        await run.finish()
    return seen


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--mib", type=float, default=32.0)
    parser.add_argument("--work", type=Path, default=Path("/tmp/platoon-soak"))
    options = parser.parse_args()
    shutil.rmtree(options.work, ignore_errors=True)
    overrides = {"eval__every": 200, "checkpoint__recovery_every": 20, "checkpoint__keep_recovery": 3}
    with open(os.devnull, "w") as quiet:
        sys.stderr, shown = quiet, sys.stderr
        try:
            seen = asyncio.run(soak(options.work, options.steps, overrides))
        finally:
            sys.stderr = shown
    half = seen[len(seen) // 2 - 1 :]
    grown, files = half[-1][1] - half[0][1], half[-1][2] - half[0][2]
    print(f"second half: {grown:+.1f} MiB, {files:+d} open files")
    return 1 if grown > options.mib or files > 2 else 0


if __name__ == "__main__":
    sys.exit(main())
