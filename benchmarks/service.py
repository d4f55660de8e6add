"""What a request to the embedded service costs through the `tinker` SDK, and where the time goes.

    python benchmarks/service.py [--model platoon-tiny] [--rounds 20]

Prints wall time and processor time of client and server for each operation.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import statistics
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import numpy as np

from platoon.train.local_service import local_service

Operation = Callable[[], Awaitable[Any]]


def server_seconds() -> float:
    """Processor time of our child processes so far."""
    total = 0.0
    for children in Path("/proc/self/task").glob("*/children"):
        for child in children.read_text().split():
            fields = Path(f"/proc/{child}/stat").read_text().rpartition(")")[2].split()
            total += (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    return total


async def measure(name: str, rounds: int, operation: Operation) -> None:
    await operation()
    walls, client, server = [], time.process_time(), server_seconds()
    for _ in range(rounds):
        start = time.perf_counter()
        await operation()
        walls.append(1e3 * (time.perf_counter() - start))
    client, server = (
        1e3 * (now - then) / rounds for now, then in ((time.process_time(), client), (server_seconds(), server))
    )
    print(
        f"{name:34} median {statistics.median(walls):7.1f} ms  worst {max(walls):7.1f}  "
        f"client cpu {client:6.1f}  server cpu {server:6.1f}"
    )


async def run(model: str, rounds: int, url: str) -> None:
    import tinker

    service = tinker.ServiceClient(base_url=url, api_key="tml-benchmark")
    [served] = (await service.get_server_capabilities_async()).supported_models
    client = await service.create_lora_training_client_async(base_model=model, rank=8)
    rng = np.random.default_rng(0)
    length = min(64, int(served.max_context_length or 64) - 1)
    rows = rng.integers(1, 100, (8, length + 1))
    inputs = [
        {
            "target_tokens": row[1:].astype(np.int64),
            "logprobs": np.full(length, -3, np.float32),
            "advantages": rng.standard_normal(length).astype(np.float32),
        }
        for row in rows
    ]
    data = [
        tinker.Datum(model_input=tinker.ModelInput.from_ints(row[:-1].tolist()), loss_fn_inputs=given)
        for row, given in zip(rows, inputs, strict=True)
    ]
    prompt = tinker.ModelInput.from_ints(rows[0][:16].tolist())
    samplers: list[Any] = [await service.create_sampling_client_async(base_model=model)]

    def sampling(count: int) -> Operation:
        async def operation() -> None:
            params = [tinker.SamplingParams(max_tokens=8, seed=seed) for seed in range(count)]
            await asyncio.gather(*(samplers[-1].sample_async(prompt, 1, each) for each in params))

        return operation

    async def grouped() -> None:
        await samplers[-1].sample_async(prompt, 32, tinker.SamplingParams(max_tokens=8, seed=0))

    async def forward_backward() -> None:
        await (await client.forward_backward_async(data, "importance_sampling"))

    async def optimizer() -> None:
        await (await client.optim_step_async(tinker.AdamParams(learning_rate=1e-6)))

    async def snapshot() -> None:
        samplers.append(await asyncio.to_thread(client.save_weights_and_get_sampling_client))

    async def named_save() -> None:
        await optimizer()
        await (await client.save_state_async("benchmark", overwrite=True))

    async def step() -> None:
        await sampling(32)()
        gradient = await client.forward_backward_async(data, "importance_sampling")
        update = await client.optim_step_async(tinker.AdamParams(learning_rate=1e-6))
        await gradient
        await update
        await snapshot()

    for count in (1, 16, 32):
        await measure(f"{count} concurrent samples of 8 tokens", rounds, sampling(count))
    await measure("one request of 32 samples", rounds, grouped)
    await measure(f"forward_backward 8 x {length}", rounds, forward_backward)
    await measure("optim_step", rounds, optimizer)
    await measure("sampler snapshot", rounds, snapshot)
    await measure("optim_step and save_state on disk", rounds, named_save)
    await measure("step: 32 samples, update, snapshot", rounds, step)
    service.holder.close()


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="platoon-tiny")
    parser.add_argument("--rounds", type=int, default=20)
    options = parser.parse_args()
    os.environ.setdefault("TINKER_TELEMETRY", "0")
    with tempfile.TemporaryDirectory() as state:
        start = time.perf_counter()
        async with local_service(Path(state), options.model) as url:
            print(f"start to ready: {time.perf_counter() - start:.2f} s")
            await run(options.model, options.rounds, url)


if __name__ == "__main__":
    asyncio.run(main())
