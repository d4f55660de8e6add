"""The evaluation flow: play every task of a split with one policy, and report.

from flows import evaluate
result = evaluate("eval.yaml", overrides=["split=test"])
"""

from __future__ import annotations

import json
import sys
from collections.abc import Coroutine, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from flows.params import told
from flows.results import EvaluationResult
from flows.running import chosen_recording, exit_guard, finish_command, in_loop, run_to_end
from platoon.config import Loaded, add_project_path, load
from platoon.envs.named import NamedEnvironments
from platoon.eval.run import EvalResult, EvaluationFailed, eval_run
from tasks.endpoint import Orchestration
from tasks.evaluation import open_evaluated
from tasks.recording import phase, recorded, settle
from tasks.reporting import report_evaluation

Overrides = Sequence[str] | Mapping[str, Any]


def evaluate(
    config: str | Path | Loaded, overrides: Overrides = (), *, orchestration: Orchestration | None = None
) -> Any:
    """Evaluate and return the `EvaluationResult`. In a notebook (inside an event loop): `await evaluate(...)`.

    Interrupted, it leaves; the next call goes on where the output directory stands.
    """

    async def work() -> EvaluationResult:
        loaded = load_evaluation(config, overrides)
        with chosen_recording(loaded, orchestration):
            return EvaluationResult.of(await eval_flow(loaded))

    return work() if in_loop() else run_to_end(work)


def run_eval(
    config: str | Path | Loaded,
    overrides: Overrides = (),
    orchestration: Orchestration | None = None,
    argv: Sequence[str] = (),
) -> int:
    """`platoon eval`: print the report's summary as JSON on stdout (for `stage: rollouts` where they are) and return
    the exit code, 1 when a rollout errored under `fail_fast`.

    When Prefect's API is away at the end, the process ends here instead of waiting for it.
    """
    loaded = load_evaluation(config, overrides)
    with chosen_recording(loaded, orchestration) as recorder, exit_guard(recorder):

        def work() -> Coroutine[Any, Any, EvalResult]:
            return eval_flow(loaded, argv)

        try:
            result = run_to_end(work)
        except EvaluationFailed as error:
            print(f"platoon: {error}", file=sys.stderr)
            return finish_command(recorder, 1)
        played = {"message": "the rollouts are played; report with stage=report", "output_dir": str(result.output_dir)}
        print(json.dumps(played if result.summary is None else result.summary, indent=2))
        return finish_command(recorder, result.exit_code)


def load_evaluation(config: str | Path | Loaded, overrides: Overrides = ()) -> Loaded:
    if isinstance(config, Loaded):
        return config
    add_project_path(Path(config))
    return told(load(config, overrides, kind="eval", resolver=NamedEnvironments()))


async def eval_flow(loaded: Loaded, argv: Sequence[str] = ()) -> EvalResult:
    """The flow `evaluate`, with one task that plays and reports."""

    @recorded("evaluate", "evaluate {config}")
    async def evaluate(config: str, overrides: list[str]) -> EvalResult:
        result = await evaluate_body(loaded, argv)
        await settle()
        return result

    return await evaluate(str(loaded.path), [str(one) for one in loaded.overrides])


async def evaluate_body(loaded: Loaded, argv: Sequence[str] = ()) -> EvalResult:
    """What the flow does: play, report, and show the report in the UI."""
    result = await phase("play", partial(eval_run, loaded, open_evaluated, argv))
    if result.summary is not None:
        await report_evaluation(result.summary, result.output_dir)
    return result
