"""The flows that deployments run: the same bodies, started by a Prefect worker with one `RunParams`.

Prefect owns the process here: it records the outer run, and its SIGTERM handler stays. The body runs on a thread of its
own; a cancellation asks it to save and leave. A retry, a rescheduled run and a second submission all go on where the
run directory stands.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

from prefect import flow
from prefect.client.schemas.objects import State
from prefect.states import Completed

from flows.eval import evaluate_body, load_evaluation
from flows.params import RunParams
from flows.prepare import load_any, prepare_body
from flows.running import run_beside
from flows.train import load_training, train_body
from platoon.train.stop import StopRequest
from tasks.endpoint import configured_endpoint
from tasks.recording import be_patient, recording
from tasks.reporting import name_run


@contextmanager
def recorded_here() -> Iterator[None]:
    """Record the body's steps at the API that started it; the run's last state is then sent with patience."""
    with recording(configured_endpoint()):
        try:
            yield
        finally:
            be_patient()


@flow(name="train", flow_run_name="train {params.config}", persist_result=False, retries=0)
async def train(params: RunParams) -> State[None]:
    """Train the run of a config to its end. A stop on request ends as `Stopped`; submit it again to go on."""
    loaded = load_training(params.config, params.overrides)
    stop = StopRequest()
    names = (loaded.train_config.stats.experiment_name, loaded.train_config.stats.trial_name)
    with recorded_here():
        await name_run("/".join(names), names)
        result = await run_beside(partial(train_body, loaded, stop, resume=params.resume), stop)
    if result.status == "interrupted":
        return Completed(name="Stopped", message=f"stopped at step {result.step} ({stop.reason}); submit it to go on")
    return Completed(message=f"{result.status} at step {result.step}: {result.run_dir}")


@flow(name="evaluate", flow_run_name="evaluate {params.config}", persist_result=False, retries=0)
async def evaluate(params: RunParams) -> State[None]:
    """Evaluate a policy; the report is in the output directory."""
    loaded = load_evaluation(params.config, params.overrides)
    with recorded_here():
        result = await run_beside(partial(evaluate_body, loaded))
    return Completed(message=f"evaluated: {result.output_dir}")


@flow(name="prepare", flow_run_name="prepare {params.config}", persist_result=False, retries=0)
async def prepare(params: RunParams) -> State[None]:
    """Fetch what a config needs. Fails when a step failed."""
    with recorded_here():
        loaded = load_any(params.config, params.overrides)
        steps = await run_beside(partial(prepare_body, loaded, dry_run=False))
    if failed := [str(step) for step in steps if step.status == "failed"]:
        raise RuntimeError("; ".join(failed))
    return Completed(message=f"ready: {len(steps)} steps")
