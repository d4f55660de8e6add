"""A round of training, saving, loading and sampling with several versions of the `tinker` SDK against the service.

    python benchmarks/sdk_matrix.py 0.16.1 0.25.0 0.38.0 [--model platoon-tiny]

Makes one throw-away environment a version (with `uv`) and prints a line for each. Exit code 1 when one failed.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import pickle
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

KEY = "tml-matrix"


def settled(value: Any) -> Any:
    """What a call returns, or what the future it returns holds; versions differ."""
    return value.result() if hasattr(value, "result") else value


def client_round(url: str, model: str) -> None:
    """Everything a trainer does, with the SDK of this interpreter. AssertionError or an SDK error when it fails."""
    import numpy as np
    import tinker
    from tinker import types

    service = tinker.ServiceClient(base_url=url, api_key=KEY)
    capabilities = service.get_server_capabilities()
    assert [m.model_name for m in capabilities.supported_models] == [model]
    client = settled(service.create_lora_training_client(base_model=model, rank=8))
    row = [5, 6, 7, 8, 9, 10]

    def tensor(values: Any, dtype: Any) -> Any:
        kind: Any = "int64" if dtype is np.int64 else "float32"
        return types.TensorData(data=np.asarray(values, dtype).tolist(), dtype=kind, shape=[len(values)])

    def datum(**inputs: Any) -> Any:
        given = {"target_tokens": tensor(row[1:], np.int64), **inputs}
        return types.Datum(model_input=types.ModelInput.from_ints(row[:-1]), loss_fn_inputs=given)

    weighted = datum(weights=tensor([1.0] * 5, np.float32))

    def step(trained: Any) -> float:
        gradient = trained.forward_backward([weighted] * 3, "cross_entropy")
        trained.optim_step(types.AdamParams(learning_rate=1e-2)).result()
        return float(gradient.result().metrics["loss:sum"])

    def scores(trained: Any) -> list[float]:
        output = trained.forward([weighted], "cross_entropy").result()
        return [float(v) for v in output.loss_fn_outputs[0]["logprobs"].data]

    losses = [step(client) for _ in range(5)]
    assert losses[-1] < losses[0], losses
    old = scores(client)
    policy = datum(logprobs=tensor(old, np.float32), advantages=tensor([1.0] * 5, np.float32))
    client.forward_backward([policy], "importance_sampling").result()
    client.optim_step(types.AdamParams(learning_rate=1e-2)).result()
    assert sum(scores(client)) > sum(old)

    state = client.save_state("round").result().path
    named = client.save_weights_for_sampler("round").result().path
    params = types.SamplingParams(max_tokens=6, seed=3, temperature=1.0)
    prompt = types.ModelInput.from_ints(row[:3])
    ephemeral = settled(client.save_weights_and_get_sampling_client())
    on_disk = settled(service.create_sampling_client(model_path=named))
    first, second = (s.sample(prompt, 2, params).result().sequences for s in (ephemeral, on_disk))
    copied = pickle.loads(pickle.dumps(on_disk)).sample(prompt, 2, params).result().sequences
    assert [s.tokens for s in first] == [s.tokens for s in second] == [s.tokens for s in copied]
    assert all(len(s.logprobs) == len(s.tokens) for s in first)
    scored = ephemeral.compute_logprobs(types.ModelInput.from_ints(row)).result()
    assert scored[0] is None
    assert len(scored) == len(row)

    resumed = settled(service.create_training_client_from_state_with_optimizer(state))
    for each in (client, resumed):
        step(each)
    assert scores(client) == scores(resumed)
    rest = service.create_rest_client()
    rest.delete_checkpoint_from_tinker_path(named).result()
    refusal = ""
    try:
        client.forward_backward([weighted], "no_such_loss").result()
    except Exception as error:  # class and place of the check differ between versions
        refusal = str(error)
    assert "no_such_loss" in refusal, refusal


def environment(version: str, root: Path) -> Path:
    """The interpreter of a fresh environment that holds this SDK."""
    python = root / version / "bin" / "python"
    subprocess.run(["uv", "venv", "-q", "--python", sys.executable, str(root / version)], check=True)
    subprocess.run(["uv", "pip", "install", "-q", "--python", str(python), f"tinker=={version}"], check=True)
    return python


async def matrix(versions: list[str], model: str) -> int:
    from platoon.train.local_service import local_service

    failed = 0
    with tempfile.TemporaryDirectory() as folder:
        async with local_service(Path(folder) / "state", model, key=KEY) as url:
            for version in versions:
                python = await asyncio.to_thread(environment, version, Path(folder))
                command = [str(python), __file__, "--client", url, "--model", model]
                run = await asyncio.create_subprocess_exec(
                    *command, env={**os.environ, "TINKER_TELEMETRY": "0"}, stderr=asyncio.subprocess.PIPE
                )
                _, stderr = await run.communicate()
                print(f"tinker {version}: {'ok' if run.returncode == 0 else 'FAILED'}", flush=True)
                if run.returncode:
                    failed = 1
                    print(stderr.decode()[-3000:])
    return failed


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("versions", nargs="*", default=["0.16.1", "0.25.0", "0.38.0"])
    parser.add_argument("--model", default="platoon-tiny")
    parser.add_argument("--client", metavar="URL", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.client:
        client_round(options.client, options.model)
    else:
        sys.exit(asyncio.run(matrix(options.versions or ["0.16.1", "0.25.0", "0.38.0"], options.model)))
