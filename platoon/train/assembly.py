"""Putting a run together: dispatcher, gateway, books, saver, evaluation and step loop, restored and saved once.

The launch save comes before the first draw, so a start number is never used twice. Everything opened here is closed by
the caller's stack, in reverse.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

from platoon.config import Loaded
from platoon.config.records import LOCK, update_lock
from platoon.config.secrets import split_secrets
from platoon.credit import GroupOutput
from platoon.draw.pool import PoolRow
from platoon.draw.records import Draw
from platoon.gateway import ModelGateway
from platoon.gateway.server import GatewayServer
from platoon.render import Renderer, build_renderer
from platoon.rollout.lease import RolloutLease
from platoon.stats.events import EventLog
from platoon.stats.metrics import label_prefixes
from platoon.stats.schema import EntryInfo
from platoon.stats.store import TaskStatsStore
from platoon.train.admitting import AdmissionMetrics, admit_hook
from platoon.train.background import Background
from platoon.train.checkpoints import Checkpoint
from platoon.train.client_metrics import CallTimes, ProcessUse
from platoon.train.dispatch import DispatchDriver
from platoon.train.evaluation import Due, EvaluationLoop
from platoon.train.group import GroupRolloutWorkflow, straggler_policy
from platoon.train.metrics import EvaluationMetrics, StepMetrics
from platoon.train.opening import sample_timeout_seconds
from platoon.train.plan import RunPlan
from platoon.train.pruning import Pruner, PrunerParts, Rules
from platoon.train.recorder import Recorder, RecorderParts, Tables
from platoon.train.resume import Restored, restore_draws, restore_statistics
from platoon.train.saving import Cadence, Saver, SaverParts
from platoon.train.scheduling import driver_options, open_dispatcher, open_gate, open_starts
from platoon.train.service import ServiceSession, TinkerSampler
from platoon.train.sinks import Progress, Sink, WandbSink
from platoon.train.starts import Phase, no_limit
from platoon.train.step import LoopState, StepLoop, StepParts
from platoon.train.stop import StopRequest, watch_stop_file
from platoon.train.transforms import Pipeline
from platoon.train.usage import usage_rows
from platoon.train.watchdog import Watchdog


@dataclass(frozen=True)
class Assembly:
    """The parts of an open run that its owner drives."""

    loop: StepLoop
    saver: Saver
    background: Background
    evaluation: EvaluationLoop | None
    pruner: Pruner | None

    async def evaluation_idle(self) -> None:
        """Wait until every evaluation that fell due has ended."""
        if self.evaluation is not None:
            await self.evaluation.idle()

    async def pruned(self) -> None:
        """Wait, for a bounded time, until no recovery checkpoint is left to delete."""
        if self.pruner is not None:
            await self.pruner.idle()


@dataclass
class Current:
    """The policy that rollouts sample now."""

    sampler: TinkerSampler
    version: int


async def assemble(
    plan: RunPlan,
    loaded: Loaded,
    session: ServiceSession,
    context_length: int | None,
    stop: StopRequest,
    stack: AsyncExitStack,
) -> Assembly:
    """Build and restore a run, and make its launch save. What it starts ends with `stack`."""
    return await _Assembler(plan, loaded, session, context_length, stop, stack).build()


class _Assembler:
    def __init__(
        self,
        plan: RunPlan,
        loaded: Loaded,
        session: ServiceSession,
        context_length: int | None,
        stop: StopRequest,
        stack: AsyncExitStack,
    ) -> None:
        self.plan, self.loaded, self.session, self.stop, self.stack = plan, loaded, session, stop, stack
        self.config = plan.config
        self.train = plan.config.train
        self.context_length = self.train.context_window_length or context_length
        self.timeout = sample_timeout_seconds(self.train.sample_timeout_seconds)
        watchdog = self.config.watchdog
        self.watchdog = Watchdog(watchdog.timeout_seconds, watchdog.exit_code)
        self.evaluation: EvaluationLoop | None = None
        self.starts = open_starts(self.config, plan.train)
        self.pruner: Pruner | None = None
        self.call_times, self.process_use = CallTimes(), ProcessUse()

    async def build(self) -> Assembly:
        renderer = build_renderer(self.train.model_name, self.train.renderer_name, self.train.renderer_kwargs)
        current = Current(await self.session.base_sampler(self.train.model_name), 0)
        gateway = self._gateway(renderer, current)
        server = await self.stack.enter_async_context(GatewayServer(gateway))
        plugins = self.plan.extensions.credit
        starts = self.starts.slot if self.starts is not None else no_limit
        workflow = GroupRolloutWorkflow(self.config, self.plan.train, gateway, server, plugins, starts)
        store = self._store()
        tables = Tables.open(self.plan.run_dir, self.plan.start)
        driver = self._driver(workflow, tables, store)
        recorder = self._recorder(store, tables, driver, current)
        driver.hooks = recorder.hooks()
        self.stack.callback(recorder.close)
        state = self._state()
        restored = self._restore(driver, store, recorder)
        self._pruning(current, state)

        async def swap(sampler: TinkerSampler, version: int, step: int) -> None:
            current.sampler, current.version = sampler, version
            gateway.set_policy(sampler, version)

        cadence = Cadence(
            self.config.checkpoint.interval(self.plan.sampling.batches), self.config.checkpoint.recovery_every
        )
        parts = SaverParts(
            self.plan.run_dir, self.plan.start, self.session, driver, recorder, cadence, store.column, swap, self._saved
        )
        saver = Saver(parts)
        await swap(await saver.full(f"recovery-{state.train_step:06d}", state), state.policy_version, state.train_step)
        self._note(restored)
        background = await self.stack.enter_async_context(Background())
        self._evaluations(renderer, recorder, background, current, state)
        self._start(background, driver, recorder)
        bounds = {e.label: e.max_staleness for e in self.config.environments if e.max_staleness is not None}
        pipeline = Pipeline.of(self.train.workflow_config, self.plan.extensions.batch_transforms)
        loop = StepLoop(StepParts(self.config, driver, self.session, saver, recorder, bounds, pipeline), state)
        return Assembly(loop, saver, background, self.evaluation, self.pruner)

    def _gateway(self, renderer: Renderer, current: Current) -> ModelGateway:
        return ModelGateway(
            sampler=current.sampler,
            renderer=renderer,
            model_name=self.train.model_name,
            version=current.version,
            context_window_length=self.context_length,
            sample_timeout_seconds=self.timeout,
            sampling_seed=self.train.sampling_seed,
        )

    def _store(self) -> TaskStatsStore:
        played = self.plan.train.played
        entries = {
            label: EntryInfo(
                group_size=one.settings.group_size,
                success_threshold=one.entry.success_threshold,
                name=label,
                seed=one.entry.seed,
                index=index,
            )
            for index, (label, one) in enumerate(played.items())
        }
        rows = self.plan.train.pool.rows
        return TaskStatsStore(
            [(row.task_id, row.entry, row.label) for row in rows],
            entries,
            column=self.train.label_by or "_platoon_environment",
            group_size=self.train.workflow_config.group_size,
        )

    def _driver(
        self, workflow: GroupRolloutWorkflow, tables: Tables, store: TaskStatsStore
    ) -> DispatchDriver[GroupOutput]:
        dispatcher = open_dispatcher(self.plan, store)

        async def run_group(draw: Draw, row: PoolRow, lease: RolloutLease) -> GroupOutput | None:
            played = await workflow.play(row, lease, seed_scope=str(draw.position), group_size=draw.group_size)
            self.call_times.observe(played.episodes)
            for usage in usage_rows(
                played.episodes, seq=draw.seq, task_id=draw.task_id, entry=draw.entry, model=self.train.model_name
            ):
                tables.usage.append(usage)
            return played.output

        return DispatchDriver(dispatcher, run_group, driver_options(self.config))

    def _recorder(
        self, store: TaskStatsStore, tables: Tables, driver: DispatchDriver[GroupOutput], current: Current
    ) -> Recorder:
        prefixes = label_prefixes((row.label for row in self.plan.train.pool.rows), store.column)
        held_out = self.plan.held_out.pool.rows if self.plan.held_out is not None else ()
        gate = open_gate(self.plan, store, driver.dispatcher)
        admission = AdmissionMetrics(gate, self.train.batch_size, prefixes) if gate is not None else None
        resumed = self.plan.resume.wandb_run_id if self.plan.resume is not None else None
        wandb = WandbSink.open(self.config, self.plan.run_dir, split_secrets(self.loaded.data)[0], resumed)
        sinks: list[Sink] = [Progress(self.plan.end_step, self.plan.start_step)]
        if wandb is not None:
            sinks.append(wandb)

        async def first_update() -> bool:
            if self.evaluation is not None:
                await either(self.evaluation.idle(), self.stop.event)
            return not self.stop.requested

        def after_step(state: LoopState) -> None:
            if self.evaluation is not None:
                self.evaluation.notice(Due(state.train_step, state.policy_version, current.sampler))

        return Recorder(
            RecorderParts(
                run_dir=self.plan.run_dir,
                start=self.plan.start,
                store=store,
                tables=tables,
                events=EventLog(self.plan.run_dir / "tasks" / "events.jsonl"),
                step_metrics=StepMetrics(
                    self.config, store, driver, prefixes, self.plan.sampling.batches, self._cuts, admission
                ),
                evaluation_metrics=EvaluationMetrics(
                    label_prefixes(row.label for row in held_out), partial(self._start_window, "eval")
                ),
                sinks=sinks,
                wandb_run_id=lambda: wandb.run_id if wandb is not None else None,
                progress=self.watchdog.heartbeat,
                gauges=self._gauges,
                after_step=after_step,
                observe=driver.dispatcher.sampling.observe,
                admit=admit_hook(gate, store.column) if gate is not None else lambda settled: None,
                first_update=first_update,
            )
        )

    def _state(self) -> LoopState:
        resume = self.plan.resume
        return LoopState(
            train_step=self.plan.start_step,
            end_step=self.plan.end_step,
            policy_version=resume.policy_version if resume is not None else 0,
            optimizer_steps=resume.optimizer_steps if resume is not None else 0,
            start_step=self.plan.start_step,
        )

    def _restore(self, driver: DispatchDriver[GroupOutput], store: TaskStatsStore, recorder: Recorder) -> Restored:
        resume = self.plan.resume
        restored = Restored()
        if resume is not None:
            restored = restore_statistics(self.plan.run_dir, resume, store)
        recorder.event(
            {
                "event": "start",
                "start": self.plan.start,
                "batch": self.plan.start_step,
                "checkpoint": resume.name if resume is not None else None,
                "state_lost": restored.state_lost,
                "loaded": restored.loaded,
            }
        )
        if resume is not None:
            restore_draws(self.plan.run_dir, resume, driver, store, restored)
        return restored

    def _pruning(self, current: Current, state: LoopState) -> None:
        keep = self.config.checkpoint.keep_recovery
        if keep is None:
            return
        bounds = [self.train.max_staleness, *(entry.max_staleness for entry in self.config.environments)]
        bound = max((one for one in bounds if one is not None), default=0)

        def rules() -> Rules:
            due = self.evaluation.sampler_paths() if self.evaluation is not None else set()
            in_use = {path for path in (current.sampler.path, *due) if path is not None}
            return Rules(keep, self.plan.start, bound, state.policy_version, in_use)

        async def open_remover() -> ServiceSession:
            return await self.session.another(f"{self.plan.run_dir.name} (pruning)")

        self.pruner = Pruner(PrunerParts(self.plan.run_dir, rules, open_remover))

    def _saved(self, checkpoint: Checkpoint) -> None:
        if self.pruner is not None and checkpoint.name.startswith("recovery-"):
            self.pruner.saved()

    def _cuts(self, draw: Draw) -> bool:
        return straggler_policy(self.plan.train.entry_of(draw.entry).settings, draw.label) is not None

    def _gauges(self) -> dict[str, float]:
        """What is measured beside the steps, as of now."""
        used = {**self.call_times.export(), **self.process_use.export()}
        used |= self._start_window("train")
        found = {f"rollout_client/{key}": value for key, value in used.items()}
        return found if self.pruner is None else {**found, **self.pruner.metrics()}

    def _start_window(self, phase: Phase) -> dict[str, float]:
        return self.starts.window(phase) if self.starts is not None else {}

    def _note(self, restored: Restored) -> None:
        """What a resume found otherwise than it was left, in lock.json."""
        if self.plan.resume is None or not (restored.state_lost or restored.sampling_changed):
            return
        about = {"start": self.plan.start, "checkpoint": self.plan.resume.name}
        records: dict[str, Any] = {}
        if restored.state_lost:
            records["tasks_state_lost"] = [{**about, "problem": restored.state_lost, "loaded": restored.loaded}]
        if restored.sampling_changed:
            records["sampling_changed"] = [{**about, "changes": restored.sampling_changed}]
        assert (self.plan.run_dir / LOCK).exists(), "the start wrote its lock file"
        update_lock(self.plan.run_dir, **records)

    def _evaluations(
        self, renderer: Renderer, recorder: Recorder, background: Background, current: Current, state: LoopState
    ) -> None:
        held_out = self.plan.held_out
        if held_out is None:
            return

        @asynccontextmanager
        async def workflow(due: Due) -> AsyncIterator[GroupRolloutWorkflow]:
            gateway = self._gateway(renderer, Current(due.sampler, due.version))
            self._start_window("eval")  # the time since the last evaluation is no part of this one
            starts = partial(self.starts.slot, "eval") if self.starts is not None else no_limit
            async with GatewayServer(gateway) as server:
                yield GroupRolloutWorkflow(self.config, held_out, gateway, server, self.plan.extensions.credit, starts)

        self.evaluation = EvaluationLoop(
            self.plan.evaluation,
            held_out,
            workflow,
            lambda evaluated: recorder.evaluated(evaluated, state.train_step),
            self.plan.run_dir,
        )
        background.start("evaluation", self.evaluation.run())
        self.evaluation.notice(Due(state.train_step, state.policy_version, current.sampler))

    def _start(self, background: Background, driver: DispatchDriver[GroupOutput], recorder: Recorder) -> None:
        async def obey() -> None:
            await self.stop.event.wait()
            driver.request_stop()

        background.start("dispatch", driver.run())
        background.start("stop", obey())
        background.start("stop-file", watch_stop_file(self.plan.run_dir, self.stop))
        background.start("flush", recorder.keep_flushing())
        if self.pruner is not None:
            background.start("pruning", self.pruner.run())
        if self.config.watchdog.enabled:
            self.watchdog.start()
            self.stack.callback(self.watchdog.stop)


async def either(work: Awaitable[None], stop: asyncio.Event) -> None:
    """Wait for the work or the stop, whichever comes first; what did not come is cancelled."""
    waiting = asyncio.ensure_future(work)
    stopping = asyncio.ensure_future(stop.wait())
    try:
        await asyncio.wait({waiting, stopping}, return_when=asyncio.FIRST_COMPLETED)
        if waiting.done():
            waiting.result()
    finally:
        for task in (waiting, stopping):
            task.cancel()
        await asyncio.gather(waiting, stopping, return_exceptions=True)
