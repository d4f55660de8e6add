"""The training flow: open the run, train step after step, finish.

    from flows import train
    result = train("first-run.yaml", overrides=["train.max_training_steps=3"])

Prefect sees a flow run and, for each step, a subflow with a task for each phase. It only records: the run directory
decides where a run stands, so calling this again goes on after the newest checkpoint.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from flows.params import Resume, check_resume, told
from flows.results import TrainResult
from flows.running import chosen_recording, exit_guard, finish_command, force_exit, in_loop, run_to_end
from platoon.config import Loaded, add_project_path, load
from platoon.envs.named import NamedEnvironments
from platoon.train.run import RunResult, TrainingRun, already_finished, open_training
from platoon.train.step import LoopState, Phase, StepReport
from platoon.train.stop import StopRequest
from tasks.endpoint import Orchestration
from tasks.recording import phase, recorded, settle, step_finished
from tasks.reporting import Reporter, Silent, Subject, reporting, wandb_links

Overrides = Sequence[str] | Mapping[str, Any]
ENDINGS = {"finished": "finished", "interrupted": "stopped", "nothing to do": "finished"}


def train(
    config: str | Path | Loaded,
    overrides: Overrides = (),
    *,
    resume: Resume = "auto",
    orchestration: Orchestration | None = None,
) -> Any:
    """Train to the end and return the `TrainResult`. In a notebook (inside an event loop): `await train(...)`.

    Ctrl-C stops at the next safe point with a final save; a second one cancels. Raises ConfigError for a bad config.
    """
    stop = StopRequest()

    def work() -> Coroutine[Any, Any, TrainResult]:
        return train_async(config, overrides, resume=resume, orchestration=orchestration, stop=stop)

    return work() if in_loop() else run_to_end(work, stop)


async def train_async(
    config: str | Path | Loaded,
    overrides: Overrides = (),
    *,
    resume: Resume = "auto",
    orchestration: Orchestration | None = None,
    stop: StopRequest | None = None,
) -> TrainResult:
    """`train` as a coroutine, with a stop request of the caller's."""
    loaded = load_training(config, overrides)
    with chosen_recording(loaded, orchestration):
        return TrainResult.of(await train_flow(loaded, stop or StopRequest(), resume))


def run_train(
    config: str | Path | Loaded,
    overrides: Overrides = (),
    orchestration: Orchestration | None = None,
    argv: Sequence[str] = (),
) -> int:
    """`platoon train`: train with signals owned by the main thread. Returns the exit code.

    When Prefect's API is away at the end, the process ends here instead of waiting for it.
    """
    loaded = load_training(config, overrides)
    if (done := already_finished(loaded)) is not None:
        return done.exit_code
    stop = StopRequest()
    with chosen_recording(loaded, orchestration) as recorder, exit_guard(recorder):
        result = run_to_end(lambda: train_flow(loaded, stop, "auto", argv), stop, force_exit)
        return finish_command(recorder, result.exit_code)


def load_training(config: str | Path | Loaded, overrides: Overrides = ()) -> Loaded:
    if isinstance(config, Loaded):
        return config
    add_project_path(Path(config))
    return told(load(config, overrides, kind="train", resolver=NamedEnvironments()))


async def train_flow(loaded: Loaded, stop: StopRequest, resume: Resume = "auto", argv: Sequence[str] = ()) -> RunResult:
    """The flow `train`, recorded under the experiment's and trial's names."""
    settings = loaded.train_config.stats
    names = (settings.experiment_name, settings.trial_name)

    @recorded("train", "/".join(names), tags=names)
    async def train(config: str, overrides: list[str], resume: Resume) -> RunResult:
        return await train_body(loaded, stop, argv, resume)

    return await train(str(loaded.path), [str(one) for one in loaded.overrides], resume)


async def train_body(loaded: Loaded, stop: StopRequest, argv: Sequence[str] = (), resume: Resume = "auto") -> RunResult:
    """What the flow does: the run itself, from opening to its final save."""
    admit = partial(check_resume, resume)
    async with open_training(loaded, stop, argv, admit=admit) as run, reporting(subject_of(loaded, run)) as reporter:
        tell_begin(run, reporter)
        await train_steps(run, reporter.step)
        result = await run.finish()
        reporter.event(f"run.{ENDINGS[result.status]}", {"step": result.step, "reason": stop.reason})
    await settle()
    return result


def subject_of(loaded: Loaded, run: TrainingRun) -> Subject:
    stats, plan = loaded.train_config.stats, run.plan
    return Subject(
        stats.experiment_name, stats.trial_name, run.run_dir, plan.start_step, plan.end_step, links=wandb_links()
    )


def tell_begin(run: TrainingRun, reporter: Reporter | Silent) -> None:
    """The event of a first start, or of one that goes on from a checkpoint."""
    resume = run.plan.resume
    about = {"start": run.plan.start, "step": run.plan.start_step, "run_dir": str(run.run_dir)}
    if resume is None:
        reporter.event("run.started", about)
    else:
        reporter.event("run.resumed", {**about, "checkpoint": resume.name})


class Steps(Protocol):
    """The part of a `TrainingRun` that the step loop needs."""

    @property
    def finished(self) -> bool: ...

    @property
    def state(self) -> LoopState | None: ...

    async def step(self, phase: Phase) -> StepReport | None: ...


async def train_steps(run: Steps, report: Callable[[int, Mapping[str, float]], None] | None = None) -> None:
    """Train until the run is finished or was asked to stop; every step is a subflow `step-00012`."""

    @recorded("train-step", "step-{step:05d}")
    async def train_step(step: int) -> StepReport | None:
        return await run.step(phase)

    while not run.finished and run.state is not None:
        done = await train_step(run.state.train_step + 1)
        if done is not None:
            step_finished(done.step, done.metrics)
            if report is not None:
                report(done.step, done.metrics)
