"""One training step: take groups, send their datums, apply the updates, publish the new policy, record.

Promise: a step is applied whole or not at all. A stop drops it only while none of its updates was applied; its groups
then stay outstanding and the next checkpoint keeps them. What a step sends is ordered by position, so that at
`max_staleness: 0` its bits do not depend on which group finished first.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol, TypeVar

from platoon.config import TrainRun
from platoon.credit import Datum, GroupOutput
from platoon.credit.loss import (
    all_advantages_zero,
    filter_zero_advantages,
    mean_over_microbatches,
    normalization_tokens,
    optimizer_metrics,
    scale_microbatch,
    short_factor,
    zero_at_zero_advantages,
)
from platoon.draw.records import Key
from platoon.rollout.trajectory import Floats
from platoon.stats.schema import Fate
from platoon.train.admitting import rule_mode
from platoon.train.dispatch import DispatchDriver, Settled, StopRequested
from platoon.train.schedule import learning_rate
from platoon.train.service import ServiceSession
from platoon.train.transforms import BatchTransformContext, Pipeline

log = logging.getLogger("platoon.train")
T = TypeVar("T")
DIVERGENCE = 0.01  # nats^2 / 2; a service whose sampler and trainer agree stays below 1e-5
Phase = Callable[[str, Callable[[], Awaitable[Any]]], Awaitable[Any]]


async def direct(name: str, body: Callable[[], Awaitable[T]]) -> T:
    """Run a phase as it is: what orchestration wraps."""
    return await body()


@dataclass
class LoopState:
    """Where the run stands. `train_step` counts committed batches; `policy_version` steps that published."""

    train_step: int
    end_step: int
    policy_version: int
    optimizer_steps: int
    start_step: int = 0

    @property
    def finished(self) -> bool:
        return self.train_step >= self.end_step


@dataclass(frozen=True)
class Submission:
    """A microbatch on its way: its datums as they were before scaling, and the service's future."""

    datums: Sequence[Datum]
    future: Any


@dataclass
class StepWork:
    """What one step took and did so far. `metrics` maps a key to the values whose mean is logged."""

    began: float
    groups: list[Settled[GroupOutput]] = field(default_factory=list)
    fates: dict[Key, Fate] = field(default_factory=dict)
    submissions: list[Submission] = field(default_factory=list)
    metrics: dict[str, list[float]] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    updates: int = 0
    empty: int = 0
    datums: int = 0
    attention_tokens: int = 0
    action_tokens: int = 0
    consumed_datums: int = 0
    rate: float | None = None
    counted: int = 0

    def note(self, values: Mapping[str, float]) -> None:
        for key, value in values.items():
            self.metrics.setdefault(key, []).append(value)

    def spend(self, phase: str, seconds: float) -> None:
        self.seconds[phase] = self.seconds.get(phase, 0.0) + seconds


class Publisher(Protocol):
    """Makes the new weights the policy that rollouts sample, saving a checkpoint when one is due."""

    async def publish(self, state: LoopState, *, updated: bool) -> None: ...


class Recorder(Protocol):
    """Takes a committed step's fates and numbers."""

    async def first_update(self) -> bool: ...

    def commit(self, work: StepWork) -> None: ...

    async def record(self, work: StepWork, state: LoopState) -> dict[str, float]: ...

    def progress(self) -> None: ...


@dataclass(frozen=True)
class StepReport:
    """A step that was committed: its number (the first is 1) and what was logged."""

    step: int
    metrics: Mapping[str, float]


@dataclass(frozen=True)
class StepParts:
    """What a step works with. `bounds`: staleness bound of entries that set their own; `pipeline`: transforms."""

    config: TrainRun
    driver: DispatchDriver[GroupOutput]
    session: ServiceSession
    publisher: Publisher
    recorder: Recorder
    bounds: Mapping[str, int | None] = field(default_factory=dict)
    pipeline: Pipeline = field(default_factory=Pipeline)
    clock: Callable[[], float] = time.perf_counter


class StepLoop:
    """Runs steps one after another over `LoopState`."""

    def __init__(self, parts: StepParts, state: LoopState) -> None:
        train = parts.config.train
        self._parts = parts
        self.state = state
        self._train = train
        self._groups_per_minibatch = train.batch_size // train.num_minibatches
        self._groups_per_microbatch = self._groups_per_minibatch // train.num_microbatches
        self._skips_zero = zero_at_zero_advantages(train.loss_fn, train.loss_fn_config)
        self._whole_first = train.sampling_seed is not None and train.max_staleness == 0
        self._ruled = rule_mode(parts.config)
        self._ahead: list[Settled[GroupOutput]] = []
        self._divergence_said = False

    async def step(self, phase: Phase = direct) -> StepReport | None:
        """Train one batch; None when a stop came before any of its updates was applied: it is then dropped whole."""
        work = StepWork(began=self._parts.clock())
        for minibatch in range(self._train.num_minibatches):
            for name, body in (("collect", self._collect), ("update", self._update)):
                if not await phase(name, partial(self._timed, name, work, partial(body, minibatch=minibatch))):
                    return None
        await phase("publish", partial(self._timed, "publish", work, self._publish))
        metrics: dict[str, float] = await phase("record", partial(self._record, work))
        return StepReport(self.state.train_step, metrics)

    async def _timed(self, name: str, work: StepWork, body: Callable[[StepWork], Awaitable[T]]) -> T:
        began = self._parts.clock()
        try:
            return await body(work)
        finally:
            work.spend(name, self._parts.clock() - began)

    # -- collect

    async def _collect(self, work: StepWork, *, minibatch: int) -> bool:
        try:
            await self._collect_minibatch(work, minibatch)
        except StopRequested:
            return False
        return True

    async def _collect_minibatch(self, work: StepWork, minibatch: int) -> None:
        if self._whole_first and not work.groups:
            self._ahead = await self._gather(work, self._train.batch_size)
            self._ahead.sort(key=lambda settled: settled.draw.position)
        for microbatch in range(self._train.num_microbatches):
            context = BatchTransformContext(self._parts.config, self.state.train_step, minibatch, microbatch)
            if self._whole_first:
                last = (minibatch + 1, microbatch + 1) == (self._train.num_minibatches, self._train.num_microbatches)
                taken = self._of_those_ahead(last=last)
            else:
                taken = await self._gather(work, self._groups_per_microbatch)
            began = self._parts.clock()
            self._submit(work, sorted(taken, key=lambda settled: settled.draw.position), context)
            work.spend("datums", self._parts.clock() - began)

    async def _gather(self, work: StepWork, places: int) -> list[Settled[GroupOutput]]:
        """Take groups until they fill so many places, or until the step has counted as many as it may."""
        taken: list[Settled[GroupOutput]] = []
        while places > 0 and not self._parts.driver.dispatcher.closed:
            taken.append(await self._take(work))
            places -= self._fills(taken[-1])
        work.counted = self._parts.driver.dispatcher.counted
        return taken

    def _of_those_ahead(self, *, last: bool) -> list[Settled[GroupOutput]]:
        """The next microbatch of a step that was taken whole; its last one takes what is left."""
        places, count = self._groups_per_microbatch, 0
        while count < len(self._ahead) and (places > 0 or last):
            places -= self._fills(self._ahead[count])
            count += 1
        taken, self._ahead = self._ahead[:count], self._ahead[count:]
        return taken

    def _fills(self, settled: Settled[GroupOutput]) -> bool:
        """Whether a group fills a place: every one does, unless a rule admits them."""
        return not self._ruled or (not settled.marker and self._fate(settled) == "consumed")

    async def _take(self, work: StepWork) -> Settled[GroupOutput]:
        began = self._parts.clock()
        settled = await self._parts.driver.take(interruptible=work.updates == 0, fills=self._fills)
        work.spend("rollouts", self._parts.clock() - began)
        self._parts.recorder.progress()
        return settled

    def _submit(self, work: StepWork, taken: Sequence[Settled[GroupOutput]], context: BatchTransformContext) -> None:
        datums: list[Datum] = []
        for settled in taken:
            work.groups.append(settled)
            if settled.marker:
                continue
            fate = self._fate(settled)
            work.fates[settled.key] = fate
            if fate == "consumed" and settled.output is not None:
                datums.extend(settled.output.datums)
        work.consumed_datums += len(datums)
        if datums:
            datums, measured = self._parts.pipeline.apply(datums, context)
            work.note(measured)
        kept, tokens = self._objective(work, datums)
        tokens *= self._short(taken, context)
        if not kept:
            work.empty += 1
            return
        scaled = scale_microbatch(kept, tokens)
        work.datums += len(scaled)
        work.attention_tokens += sum(d.attention_tokens for d in scaled)
        work.action_tokens += sum(d.action_tokens for d in scaled)
        future = self._parts.session.submit_forward_backward(scaled, self._train.loss_fn, self._train.loss_fn_config)
        work.submissions.append(Submission(kept, future))

    def _short(self, taken: Sequence[Settled[GroupOutput]], context: BatchTransformContext) -> float:
        """Factor of a microbatch's tokens: one cut short by the step's cap weighs as little as it holds groups."""
        admitted, places = sum(self._fills(settled) for settled in taken), self._groups_per_microbatch
        return short_factor(admitted, places) if self._ruled and context.microbatch_num else 1.0

    def _fate(self, settled: Settled[GroupOutput]) -> Fate:
        output = settled.output
        if output is None:
            return "failed"
        entry = settled.draw.entry
        bound = self._parts.bounds.get(entry, self._train.max_staleness) if entry else self._train.max_staleness
        if bound is None or not output.datums:
            return "consumed"
        version = min(datum.version for datum in output.datums)
        return "stale" if self.state.policy_version - version > bound else "consumed"

    def _objective(self, work: StepWork, datums: list[Datum]) -> tuple[list[Datum], float]:
        """What of a microbatch reaches the service, and the action tokens its loss is divided by."""
        tokens = normalization_tokens(datums)
        if not self._skips_zero:
            return datums, tokens
        if datums and self._train.workflow_config.filter_zero_advantage_datums:
            filtered = filter_zero_advantages(datums)
            work.note(filtered.stats)
            datums = filtered.kept
        return ([], tokens) if all_advantages_zero(datums) else (datums, tokens)

    # -- update

    async def _update(self, work: StepWork, *, minibatch: int) -> bool:
        """Apply the minibatch's update, if it has one. False when a stop ended the wait for the first evaluation."""
        submissions, work.submissions = work.submissions, []
        if not submissions:
            return True
        train = self._train
        first = self.state.start_step == 0 and self.state.optimizer_steps == 0
        if first and not await self._parts.recorder.first_update():
            return False
        planned = self.state.end_step * train.num_minibatches
        work.rate = learning_rate(train.optimizer, self.state.train_step * train.num_minibatches + minibatch, planned)
        optim = self._parts.session.submit_optim_step(train.optimizer, work.rate)
        per_microbatch: list[dict[str, float]] = []
        for submission in submissions:
            lengths = [len(datum.targets_T) for datum in submission.datums]
            logprobs, _ = await self._parts.session.forward_backward_result(
                submission.future, train.forward_backward_timeout_seconds, lengths
            )
            self._parts.recorder.progress()
            found = self._compared(submission.datums, logprobs)
            self._watch_divergence(work, submission.datums, found)
            per_microbatch.append(found)
        metrics = await self._parts.session.optim_step_result(optim, train.optim_step_timeout_seconds)
        self._parts.recorder.progress()
        self.state.optimizer_steps += 1
        work.updates += 1
        work.note({f"optim/{key}": value for key, value in metrics.items()})
        work.note(mean_over_microbatches(per_microbatch))
        return True

    def _compared(self, datums: Sequence[Datum], logprobs: Sequence[Floats]) -> dict[str, float]:
        """Metrics of a microbatch; {} (warned) when the service's answer does not fit: no metric fails a step."""
        try:
            return optimizer_metrics(datums, logprobs, self._train.loss_fn, self._train.loss_fn_config)
        except ValueError as error:
            log.warning("step %d: no optimizer metrics: %s", self.state.train_step + 1, error)
            return {}

    def _watch_divergence(self, work: StepWork, datums: Sequence[Datum], found: Mapping[str, float]) -> None:
        """Say once that sampler and trainer disagree on tokens that the trained weights themselves sampled."""
        divergence = found.get("optim/kl_sample_train_v2", 0.0)
        on_policy = work.updates == 0 and all(datum.version == self.state.policy_version for datum in datums)
        if on_policy and divergence > DIVERGENCE and not self._divergence_said:
            self._divergence_said = True
            log.warning(
                "step %d: the service's sampler and its trainer disagree about the same weights "
                "(optim/kl_sample_train_v2 %.3g, expected below %.3g): updates are off-policy from the start",
                self.state.train_step + 1,
                divergence,
                DIVERGENCE,
            )

    # -- publish and record

    async def _publish(self, work: StepWork) -> None:
        self._parts.driver.commit(work.fates)
        self._parts.recorder.commit(work)
        if work.updates:
            self.state.policy_version += 1
        self.state.train_step += 1
        await self._parts.publisher.publish(self.state, updated=work.updates > 0)

    async def _record(self, work: StepWork) -> dict[str, float]:
        self._parts.driver.step_started(self.state.policy_version)
        work.spend("batch_total", self._parts.clock() - work.began)
        metrics = await self._parts.recorder.record(work, self.state)
        self._parts.recorder.progress()
        return metrics
