"""The flows that deployments run: the same bodies, started by a Prefect worker with one `RunParams`.

Prefect owns the process here: it records the outer run, and its SIGTERM handler stays. A cancellation reaches the body
as CancelledError; the run saves and leaves. A retry, a rescheduled run and a second submission all go on where the run
directory stands.
"""

from __future__ import annotations

from functools import partial

from prefect import flow

from flows.eval import load_evaluation
from flows.params import RunParams, check_resume
from flows.prepare import load_any, prepare_body
from flows.train import load_training, train_body
from platoon.config import run_directory
from platoon.eval.run import eval_run
from platoon.train.stop import StopRequest
from tasks.endpoint import configured_endpoint
from tasks.evaluation import open_evaluated
from tasks.recording import phase, recording


@flow(name="train", flow_run_name="train {params.config}", persist_result=False, retries=0)
async def train(params: RunParams) -> None:
    """Train the run of a config to its end."""
    loaded = load_training(params.config, params.overrides)
    check_resume(params.resume, run_directory(loaded.train_config))
    with recording(configured_endpoint()):
        await train_body(loaded, StopRequest())


@flow(name="evaluate", flow_run_name="evaluate {params.config}", persist_result=False, retries=0)
async def evaluate(params: RunParams) -> None:
    """Evaluate a policy; the report is in the output directory."""
    loaded = load_evaluation(params.config, params.overrides)
    with recording(configured_endpoint()):
        await phase("play", partial(eval_run, loaded, open_evaluated))


@flow(name="prepare", flow_run_name="prepare {params.config}", persist_result=False, retries=0)
async def prepare(params: RunParams) -> None:
    """Fetch what a config needs. Fails when a step failed."""
    with recording(configured_endpoint()):
        steps = await prepare_body(load_any(params.config, params.overrides), dry_run=False)
    if failed := [str(step) for step in steps if step.status == "failed"]:
        raise RuntimeError("; ".join(failed))
