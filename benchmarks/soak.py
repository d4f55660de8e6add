"""A long run on fakes: does memory stay flat, and the number of open files?

    python benchmarks/soak.py --steps 2000 --work /tmp/soak

The real loop, dispatcher, gateway, rollouts, credit, statistics, tables and checkpoints, over a training service in the
process that answers at once. Every 100 steps it prints resident memory after `malloc_trim`, bytes in use on the C
library's heap, Python's own blocks, Arrow's bytes, threads and open files. Exit code 1 when the second half of the run
grows by more than `--mib` resident or `--blocks`, or opens files that it does not close.

Two things that are no leaks stay out of these numbers. Arrow's own allocator keeps some MiB of freed pages at a time:
here Arrow uses the C library's heap, whose freed pages `malloc_trim` gives back. And the first read of a part brings in
17 MiB of readers and threads, whenever a part is first joined: the warm-up reads one.
"""

from __future__ import annotations

import argparse
import asyncio
import ctypes
import gc
import os
import random
import shutil
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

os.environ["ARROW_DEFAULT_MEMORY_POOL"] = "system"  # before pyarrow is imported
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import pyarrow as pa
import pyarrow.parquet as pq

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


class MallocInfo(ctypes.Structure):
    """glibc's `struct mallinfo2`."""

    _names = ("arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks", "uordblks", "fordblks", "keepcost")
    _fields_ = tuple((name, ctypes.c_size_t) for name in _names)


@dataclass(frozen=True)
class Memory:
    """What the process holds now. `resident`, `heap`: MiB."""

    resident: float
    heap: float
    blocks: int
    arrow: int
    threads: int
    files: int

    @classmethod
    def now(cls) -> Memory:
        libc = ctypes.CDLL("libc.so.6")
        libc.mallinfo2.restype = MallocInfo
        gc.collect()
        libc.malloc_trim(0)
        heap = libc.mallinfo2()
        return cls(
            (resident_bytes() or 0) / 2**20,
            (heap.uordblks + heap.hblkhd) / 2**20,
            sys.getallocatedblocks(),
            pa.total_allocated_bytes(),
            threading.active_count(),
            len(os.listdir("/proc/self/fd")),
        )

    def __str__(self) -> str:
        return (
            f"{self.resident:.1f} MiB resident, {self.heap:.1f} MiB of heap, {self.blocks} blocks, {self.arrow} bytes "
            f"of Arrow, {self.threads} threads, {self.files} files"
        )


def forget_episodes() -> None:
    """The test environment lists every session it opened and closed: that growth is its own."""
    environment = sys.modules["saying"]
    environment.OPENED.clear()
    environment.CLOSED.clear()


async def soak(work: Path, steps: int, overrides: dict[str, Any]) -> list[Memory]:
    """Memory every 100 steps."""
    config = loaded(work, train__max_training_steps=steps, train__max_staleness=2, **overrides)
    add_project_path(config)
    directory = run_dir(work)
    directory.mkdir(parents=True)
    stop = StopRequest()
    stop.bind()
    seen: list[Memory] = []
    async with AsyncExitStack() as stack:
        plan = await plan_run(config.train_config, directory, None)
        session = cast(Any, FakeTrainingSession(guesses(random.Random(0))))
        run = TrainingRun(plan, await assemble(plan, config, session, 256, stop, stack), stop)
        began = time.monotonic()
        while not run.finished:
            report = await run.step()
            if report is None or report.step % EVERY:
                continue
            if not seen:
                read_table(directory, "metrics")
                pq.read_table(next((directory / "metrics").glob("*.parquet")))
            forget_episodes()
            seen.append(Memory.now())
            print(f"step {report.step}: {seen[-1]}, {report.step / (time.monotonic() - began):.0f} steps/s", flush=True)
        await run.finish()
    return seen


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--mib", type=float, default=2.0)
    parser.add_argument("--blocks", type=int, default=3000)
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
    middle, last = seen[len(seen) // 2 - 1], seen[-1]
    grown, blocks, files = last.resident - middle.resident, last.blocks - middle.blocks, last.files - middle.files
    print(f"second half: {grown:+.2f} MiB resident, {blocks:+d} blocks, {files:+d} open files")
    return 1 if grown > options.mib or blocks > options.blocks or files > 2 else 0


if __name__ == "__main__":
    sys.exit(main())
