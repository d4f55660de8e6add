"""A training run: opened, stepped, finished.

    async with open_training(loaded, stop) as run:
        while not run.finished:
            await run.step()
        result = await run.finish()

Everything a run starts (service, server, tasks, files) is closed by `open_training`. The run directory alone decides
where a run stands; opening it again goes on after its newest checkpoint.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from platoon.config import ConfigError, Loaded, RunLock, TrainRun, add_project_path, run_directory
from platoon.config.records import check_name
from platoon.train.assembly import Assembly, assemble, either
from platoon.train.background import unless
from platoon.train.checkpoints import Checkpoint, newest_resumable, next_start, warn_of_torn_rows
from platoon.train.components import start_components
from platoon.train.evaluation import EvaluationPlan
from platoon.train.extensions import TrainingExtensions
from platoon.train.opening import Service, find_service, open_session, start_service
from platoon.train.plan import RunPlan, nothing_left
from platoon.train.planning import plan_tasks
from platoon.train.records import record_start
from platoon.train.step import LoopState, Phase, StepReport, direct
from platoon.train.stop import StopRequest

log = logging.getLogger("platoon.train")
LEAVE_SECONDS = 25.0  # what a cancelled Prefect run is given before it is killed is 30
Status = Literal["finished", "interrupted", "nothing to do"]


@dataclass(frozen=True)
class RunResult:
    """How a run ended. `steps`: committed by this start. `step`: where the run stands."""

    run_dir: Path
    status: Status
    step: int
    steps: int
    exit_code: int = 0


class TrainingRun:
    """One start of a run, open between its launch save and its end."""

    def __init__(self, plan: RunPlan, parts: Assembly | None, stop: StopRequest) -> None:
        self.plan = plan
        self.run_dir = plan.run_dir
        self._parts = parts
        self._stop = stop
        self._dropped = False

    @property
    def state(self) -> LoopState | None:
        return self._parts.loop.state if self._parts is not None else None

    @property
    def finished(self) -> bool:
        """True when no step is left, or a stop was asked for."""
        return self._parts is None or self._parts.loop.state.finished or self._stop.requested or self._dropped

    async def step(self, phase: Phase = direct) -> StepReport | None:
        """Train one batch; None when a stop dropped it. `phase(name, body)` runs each of the step's phases."""
        assert self._parts is not None, "a run without anything to do has no step"
        work = asyncio.ensure_future(self._parts.loop.step(phase))
        try:
            report = await self._parts.background.until(work)
        except asyncio.CancelledError:
            await self._leave(work)
            raise
        self._dropped = report is None
        return report

    async def _leave(self, work: asyncio.Future[StepReport | None]) -> None:
        """Cancelled from outside: drop or finish the step, and save, within `LEAVE_SECONDS`."""
        assert self._parts is not None
        self._stop.request("cancelled")
        state = self._parts.loop.state
        try:
            async with asyncio.timeout(LEAVE_SECONDS):
                await asyncio.wait({work})
                if state.train_step > self.plan.start_step:
                    await self._parts.saver.full(f"{state.train_step:06d}_interrupted", state)
        except TimeoutError:
            log.warning("no final save within %.0f s; the run goes on from its newest checkpoint", LEAVE_SECONDS)
        finally:
            work.cancel()
            await asyncio.gather(work, return_exceptions=True)

    async def finish(self) -> RunResult:
        """Wait for evaluations, make the final save, and say how the run ended."""
        parts = self._parts
        if parts is None:
            return RunResult(self.run_dir, "nothing to do", self.plan.start_step, 0)
        state = parts.loop.state
        if not self._stop.requested:
            await parts.background.race(either(parts.evaluation_idle(), self._stop.event))
        done = state.train_step - self.plan.start_step
        if self._stop.requested and not state.finished:
            if done > 0:
                await parts.background.race(parts.saver.full(f"{state.train_step:06d}_interrupted", state))
            await parts.background.race(parts.pruned())
            log.info("stopped at step %d of %d (%s)", state.train_step, state.end_step, self._stop.reason)
            return RunResult(self.run_dir, "interrupted", state.train_step, done)
        if done > 0:
            await parts.background.race(parts.saver.full("final", state))
        await parts.background.race(parts.pruned())
        log.info("finished: %d of %d steps, results in %s", state.train_step, state.end_step, self.run_dir)
        return RunResult(self.run_dir, "finished", state.train_step, done)


@asynccontextmanager
async def open_training(
    loaded: Loaded,
    stop: StopRequest | None = None,
    argv: Sequence[str] = (),
    extensions: TrainingExtensions | None = None,
    admit: Callable[[Path], None] = lambda run_dir: None,
) -> AsyncIterator[TrainingRun]:
    """Open a run: check, take the directory, list tasks, start the service, restore, make the launch save.

    `admit` is asked once the directory is held, and may refuse it by a ConfigError.
    ConfigError (exit 78) for what a user can set right; other errors are the run's failure.
    """
    stop = stop or StopRequest()
    stop.bind()
    config = loaded.train_config
    check_training(config)
    add_project_path(loaded)
    run_dir = run_directory(config)
    resume = newest_resumable(run_dir, config.train.num_minibatches)
    async with AsyncExitStack() as stack:
        address = await find_service(config, resuming=resume is not None)
        components = start_components(loaded)
        check_name(loaded, run_dir)
        stack.enter_context(RunLock(run_dir))
        admit(run_dir)
        warn_of_torn_rows(run_dir)
        resume = newest_resumable(run_dir, config.train.num_minibatches)
        began = time.monotonic()
        plan = replace(await plan_run(config, run_dir, resume), extensions=extensions or TrainingExtensions())
        if plan.nothing_to_do:
            log.info("the run in %s is finished (%d steps)", run_dir, plan.end_step)
            yield TrainingRun(plan, None, stop)
            return
        record_start(loaded, plan, argv, components)
        service = await start_service(config, address, run_dir / "service", stack)
        async with unless(service.ended()):
            parts = await _open_parts(plan, loaded, service, stop, stack)
        if parts is not None and (ended := service.ended()) is not None:
            parts.background.start("service", ended)
        log.info("ready after %.1f s at step %d of %d", time.monotonic() - began, plan.start_step, plan.end_step)
        yield TrainingRun(plan, parts, stop)


async def _open_parts(
    plan: RunPlan, loaded: Loaded, service: Service, stop: StopRequest, stack: AsyncExitStack
) -> Assembly | None:
    """The run's parts on a session with the service; None when a stop came first."""
    stats = plan.config.stats
    name = "/".join((stats.experiment_name, stats.trial_name))
    opened = await open_session(plan.config, service.address, name, plan.resume, stop.event)
    if opened is None:
        return None
    session, context_length = opened
    stack.push_async_callback(session.close)
    return await assemble(plan, loaded, session, context_length, stop, stack)


async def plan_run(config: TrainRun, run_dir: Path, resume: Checkpoint | None) -> RunPlan:
    """List the tasks and work out how much there is to do. Logs the sampling plan."""
    planned = await plan_tasks(config)
    for line in planned.lines:
        log.info("%s", line)
    for line in planned.warnings:
        log.warning("%s", line)
    steps = planned.sampling.steps
    assert steps is not None, "check_training saw a duration"
    evaluation = EvaluationPlan(planned.interval, config.eval.at_start, config.eval.max_concurrent_rollouts or 256)
    start = next_start(run_dir)
    return RunPlan(config, run_dir, planned.train, planned.held_out, planned.sampling, steps, evaluation, resume, start)


def already_finished(loaded: Loaded) -> RunResult | None:
    """The result of a run that has nothing left to do, where its directory alone tells; None to open it and see.

    A length in epochs needs the tasks listed. Imports no environment and asks no service.
    """
    config = loaded.train_config
    steps = config.train.max_training_steps
    if steps is None or config.train.num_epochs is not None or config.eval.strategy == "epoch":
        return None
    run_dir = run_directory(config)
    resume = newest_resumable(run_dir, config.train.num_minibatches)
    evaluation = EvaluationPlan(config.eval.interval(1), config.eval.at_start, config.eval.max_concurrent_rollouts or 1)
    if resume is None or not nothing_left(run_dir, resume.batch, steps, evaluation):
        return None
    log.info("the run in %s is finished (%d steps)", run_dir, steps)
    return RunResult(run_dir, "nothing to do", resume.batch, 0)


def check_training(config: TrainRun) -> None:
    """What a training run needs beyond a config that loads. ConfigError reports all of it."""
    problems = []
    if config.train.num_epochs is None and config.train.max_training_steps is None:
        problems.append("train: set num_epochs or max_training_steps (or both; the smaller step count is trained)")
    for key, settings in (("train", config.train.workflow_config), ("eval", config.eval.workflow_config)):
        if not getattr(settings.rollout_config, "judges", True):
            problems.append(f"{key}.workflow_config.rollout_config.judges: a training run cannot turn judges off")
    if problems:
        raise ConfigError(problems, "the run cannot train")


async def train_run(loaded: Loaded, stop: StopRequest | None = None, argv: Sequence[str] = ()) -> RunResult:
    """Train to the end (or to a stop) without orchestration."""
    if (done := already_finished(loaded)) is not None:
        return done
    async with open_training(loaded, stop, argv) as run:
        while not run.finished:
            await run.step()
        return await run.finish()
