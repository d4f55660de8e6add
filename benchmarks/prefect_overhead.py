"""What recording costs a step: 200 trivial steps of four phases, with and without Prefect.

    platoon server start
    python benchmarks/prefect_overhead.py            # PREFECT_API_URL, the profile's server or `platoon server`

Prints the wall time a step in milliseconds. It needs a server that answers and starts none.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from tasks.endpoint import Endpoint, choose_api
from tasks.recording import phase, recorded, recording

PHASES = ("collect", "update", "publish", "record")


async def trivial() -> None:
    await asyncio.sleep(0)


async def train(steps: int) -> list[float]:
    """Seconds of each step."""
    seconds: list[float] = []

    @recorded("train-step", "step-{step:05d}")
    async def train_step(step: int) -> None:
        for name in PHASES:
            await phase(name, trivial)

    @recorded("benchmark", "prefect-overhead")
    async def benchmark(steps: int) -> None:
        for step in range(1, steps + 1):
            began = time.perf_counter()
            await train_step(step)
            seconds.append(time.perf_counter() - began)

    await benchmark(steps)
    return seconds


def measure(endpoint: Endpoint | None, steps: int) -> None:
    with recording(endpoint) as recorder:
        milliseconds = sorted(1000 * second for second in asyncio.run(train(steps)))
    if recorder is not None and recorder.breaker.is_open:
        raise SystemExit("the API went away during the measurement")
    label = "recorded" if endpoint else "unrecorded"
    tail = milliseconds[int(0.95 * steps)]
    print(
        f"{label:>10}: median {statistics.median(milliseconds):8.3f} ms  mean {statistics.mean(milliseconds):8.3f} ms"
        f"  p95 {tail:8.3f} ms  max {milliseconds[-1]:8.3f} ms  ({steps} steps)"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=200)
    steps = parser.parse_args().steps
    endpoint = choose_api("require")
    measure(None, steps)
    measure(endpoint, steps)


if __name__ == "__main__":
    main()
