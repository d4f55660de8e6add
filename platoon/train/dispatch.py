"""The driver of the dispatcher: starts groups, collects results, hands them to the train loop.

All state changes happen on one event loop; the dispatcher's coroutine wakes on events and never polls. It promises
that each started group settles exactly once or is cancelled by `close`, that results keep completion order, and that
no one waits for a result that nobody can bring. It decides nothing itself and records nothing: see `DispatchHooks`.
"""

from __future__ import annotations

import asyncio
import logging
import sys
import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Generic, TypeVar

from platoon.draw.admission.gate import Ruling
from platoon.draw.dispatcher import Dispatcher
from platoon.draw.permits import PermitPool
from platoon.draw.pool import PoolRow
from platoon.draw.records import Ask, Draw, Drawn, Fated, Key, Record, SlotSkipped, Start, Wait
from platoon.draw.traffic import Traffic, configured_rollouts
from platoon.extensions.boundary import Boundary
from platoon.rollout.lease import LeaseHooks, RolloutLease, lease_scope
from platoon.stats.schema import Fate

logger = logging.getLogger(__name__)
OutputT = TypeVar("OutputT")


class StopRequested(Exception):
    """`take` gave up because the run was asked to stop."""


class DriverEnded(RuntimeError):
    """`take` cannot bring a result any more; the driver's own failure, if any, is the cause."""


# runs one group's rollouts and credits them; None, or an exception, is a failed group
RunGroup = Callable[[Draw, PoolRow, RolloutLease], Awaitable[OutputT | None]]


@dataclass(frozen=True)
class Settled(Generic[OutputT]):
    """A group whose workflow ended. `error` says why there is no output; exactly one of the two is None.

    `ruling`: what an admission rule said of it. `marker`: it was turned away and has its fate; its output only brings
    statistics.
    """

    draw: Draw
    output: OutputT | None
    error: str | None
    seconds: float
    ruling: Ruling | None = None
    marker: bool = False

    @property
    def key(self) -> Key:
        return self.draw.key


@dataclass(frozen=True)
class KeptGroup(Generic[OutputT]):
    """A settled group that a checkpoint kept, read back. `version`: the policy version at its draw."""

    key: Key
    output: OutputT | None
    error: str | None = None
    seconds: float = 0.0
    version: int = 0
    reason: str = "order"
    score: float | None = None


@dataclass(frozen=True)
class DriverState(Generic[OutputT]):
    """One moment of the run: the dispatcher's JSON state, and the settled groups that no committed step trained."""

    dispatch: dict[str, Any]
    kept: tuple[Settled[OutputT], ...]


@dataclass(frozen=True)
class DispatchHooks(Generic[OutputT]):
    """Called at once, in order, on the run's loop. They must not raise: what they raise ends the run.

    `before_decision`: an adaptive sampler is about to be asked; the statistics must be up to date.
    `admit`: what a rule says of a settled group, None without rules. `emptied`: a rejected output without its datums,
    and whether it had any.
    """

    on_draw: Callable[[Draw], None] = lambda draw: None
    on_settle: Callable[[Settled[OutputT]], None] = lambda settled: None
    on_fate: Callable[[Key, Fate], None] = lambda key, fate: None
    on_event: Callable[[dict[str, Any]], None] = lambda event: None
    before_decision: Callable[[], None] = lambda: None
    admit: Callable[[Settled[OutputT]], Ruling | None] = lambda settled: None
    emptied: Callable[[OutputT], tuple[OutputT, bool]] = lambda output: (output, True)


@dataclass(frozen=True)
class DriverOptions:
    """`rolling`: a group starts on its first permit and returns each as its rollout ends; else whole, at group end.

    `finish_step_on_stop`: a stop request must let the step in progress complete (several minibatches per step).
    `fatal`: exceptions of a group that end the run instead of failing the group.
    """

    max_concurrent_rollouts: int
    rolling: bool = True
    finish_step_on_stop: bool = False
    fatal: tuple[type[Exception], ...] = ()
    clock: Callable[[], float] = time.monotonic


class DispatchDriver(Generic[OutputT]):
    """Owns a start's dispatcher, its permits and every group task."""

    def __init__(
        self,
        dispatcher: Dispatcher,
        run_group: RunGroup[OutputT],
        options: DriverOptions,
        hooks: DispatchHooks[OutputT] | None = None,
    ) -> None:
        self.dispatcher = dispatcher
        self.permits = PermitPool(options.max_concurrent_rollouts, self._permits_changed)
        self._run_group = run_group
        self._options = options
        self.hooks: DispatchHooks[OutputT] = hooks or DispatchHooks()
        self._clock = options.clock
        sizes = {dispatcher.settings.size_of(entry) for entry in dispatcher.pool.by_entry}
        configured = configured_rollouts(options.max_concurrent_rollouts, sizes, rolling=options.rolling)
        self.traffic = Traffic(self._clock(), configured)
        self._results: dict[Key, Settled[OutputT]] = {}  # settled and without a fate, in settle order
        self._queue: deque[Settled[OutputT]] = deque()
        self._tasks: set[asyncio.Task[None]] = set()
        self._wake = asyncio.Event()
        self._arrived = asyncio.Event()
        self._starting: RolloutLease | None = None
        self._idle = False
        self._over_budget = False
        self._skipping: set[str] = set()  # labels and entries whose draws were skipped
        self._running = False
        self._ended = False
        self._failure: BaseException | None = None
        self.stopping = False
        self._closing = False

    # -- life

    def start(self, tasks: asyncio.TaskGroup) -> asyncio.Task[None]:
        """Run in the run's task group."""
        self._running = True
        return tasks.create_task(self.run(), name="dispatch")

    async def run(self) -> None:
        """Start groups until stopped, then wait for `close` and cancel what still runs. Raises what a hook raised."""
        self._running = True
        self.traffic.blocked_shares(self._clock())  # shares are of the time from here on
        try:
            async with asyncio.TaskGroup() as tasks:
                await self._dispatch(tasks)
                await self._until_closed()
                for task in self._tasks:
                    task.cancel()
        except BaseExceptionGroup as group:
            alone = len(group.exceptions) == 1 or all(isinstance(e, self._options.fatal) for e in group.exceptions)
            raise (group.exceptions[0] if alone else group) from None
        finally:
            self._failure = sys.exception()
            self._ended = True
            self._arrived.set()

    def request_stop(self) -> None:
        """Start no more groups (unless the step in progress must complete) and end interruptible waits."""
        self.stopping = True
        if self._halted and self._starting is not None:
            self._starting.release()
        self._wake.set()
        self._arrived.set()

    def close(self) -> None:
        """The train loop is done: groups still running are cancelled and `run` returns."""
        self._closing = True
        self.request_stop()

    @property
    def _halted(self) -> bool:
        return self._closing or (self.stopping and not self._options.finish_step_on_stop)

    async def _until_closed(self) -> None:
        self._idle = True
        self._arrived.set()
        while not self._closing:
            self._wake.clear()
            await self._wake.wait()

    # -- starting groups

    async def _dispatch(self, tasks: asyncio.TaskGroup) -> None:
        while not self._halted:
            before = self._clock()
            decision = self.dispatcher.choose()
            for record in decision.records:
                if isinstance(record, Drawn):
                    self.traffic.decided(record.draw, self._clock() - before)
                    break
            self._report(decision.records)
            wait = decision if isinstance(decision, Wait) else await self._start_group(tasks, decision)
            if wait is None:
                continue
            self._wake.clear()
            self._idle = True
            self._arrived.set()
            self.traffic.blocked.wait(wait.reason, self._clock())
            await self._wake.wait()
            self._idle = False
            self.traffic.blocked.go(self._clock())

    async def _start_group(self, tasks: asyncio.TaskGroup, chosen: Start | Ask) -> Wait | None:
        """Start the group once it has its permits, asking a sampler which where it is to say."""
        held: list[Key] = []
        lease = self._lease(chosen, held)
        try:
            if not lease.startable:
                await self._permitted(lease)
        except asyncio.CancelledError:
            self._give_up(lease, chosen)
            raise
        if self._halted:
            self._give_up(lease, chosen)
            return None
        decision = chosen if isinstance(chosen, Start) else self._decide()
        if isinstance(decision, Wait):
            lease.release()
            return decision
        draw = decision.draw
        held.append(draw.key)
        lease.shrink(draw.group_size)
        self.traffic.groups.add(1, self._clock())
        task = tasks.create_task(self._group(draw, lease), name=f"group-{draw.start}-{draw.seq}")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return None

    async def _permitted(self, lease: RolloutLease) -> None:
        self._starting = lease
        self.traffic.blocked.wait("permits", self._clock())
        try:
            await lease.ready()
        finally:
            self._starting = None
            self.traffic.blocked.go(self._clock())

    def _give_up(self, lease: RolloutLease, chosen: Start | Ask) -> None:
        lease.release()
        if isinstance(chosen, Start):
            self.dispatcher.put_back(chosen.draw.key)
        else:
            self.dispatcher.withdraw()

    def _decide(self) -> Start | Wait:
        self.hooks.before_decision()
        before = self._clock()
        decision = self.dispatcher.decide()
        if isinstance(decision, Start):
            self.traffic.decided(decision.draw, self._clock() - before)
            self._report(decision.records)
        return decision

    def _lease(self, chosen: Start | Ask, held: list[Key]) -> RolloutLease:
        """A lease for what was chosen; once it is released, the label slots of the draws in `held` are free."""
        size = chosen.draw.group_size if isinstance(chosen, Start) else chosen.size

        def released() -> None:
            for key in held:
                self.dispatcher.released(key)
            self._wake.set()

        return RolloutLease(
            size,
            self.permits.reserve(size, rolling=self._options.rolling),
            active=self._options.rolling,
            name=f"draw {chosen.draw.start}-{chosen.draw.seq}" if isinstance(chosen, Start) else "a draw",
            hooks=LeaseHooks(released, self._block, self._clock),
        )

    def _permits_changed(self, change: int) -> None:
        self.traffic.permits.add(change, self._clock())

    def _block(self, change: int) -> None:
        self.traffic.rollouts.add(change, self._clock())
        budget = self.permits.capacity
        if self.traffic.rollouts.value > budget and not self._over_budget:
            self._over_budget = True
            logger.warning("more rollouts run than max_concurrent_rollouts: %d allows; await each in its block", budget)

    async def _group(self, draw: Draw, lease: RolloutLease) -> None:
        began = self._clock()
        output: OutputT | None = None
        error: str | None = None
        try:
            with (
                lease_scope(lease),
                Boundary("program", quiet=True) as caught,
            ):  # whatever it raises fails its group only
                output = await self._run_group(draw, self.dispatcher.pool[draw.row_index], lease)
            if isinstance(caught.error, self._options.fatal):
                raise caught.error
            caught.report()
            if output is None:
                error = caught.text or "the group's workflow returned nothing"
        except asyncio.CancelledError as cancelled:
            task = asyncio.current_task()
            if task is None or task.cancelling():
                raise  # the run cancels this group; anything else inside it failed
            error = f"cancelled inside the group: {cancelled}"
        finally:
            lease.release()  # before the group settles, or the wake-up finds nothing free
            self.traffic.groups.add(-1, self._clock())
        self._settle(Settled(draw, output, error, self._clock() - began))

    def _settle(self, settled: Settled[OutputT]) -> None:
        if settled.seconds > 60:
            level = logging.WARNING if settled.seconds > 120 else logging.INFO
            logger.log(level, "group %s of task %s took %.0f s", settled.key, settled.draw.task_id, settled.seconds)
        if settled.error is not None:
            logger.error("group %s of task %s failed: %s", settled.key, settled.draw.task_id, settled.error)
        self.hooks.on_settle(settled)
        ruling = self.hooks.admit(settled)
        if ruling is None or ruling.admit:
            settled = replace(settled, ruling=ruling)
            self.dispatcher.settled(settled.key)
            self._results[settled.key] = settled
        else:
            settled = self._rejected(settled, ruling)
        self._queue.append(settled)
        self._arrived.set()
        self._wake.set()

    def _rejected(self, settled: Settled[OutputT], ruling: Ruling) -> Settled[OutputT]:
        """The group has its fate at once; a marker without its datums goes to the next step."""
        output, carried = settled.output, False
        if output is not None:
            output, carried = self.hooks.emptied(output)
        fate: Fate = "failed" if settled.output is None else "rejected"
        self._report(self.dispatcher.rejected(settled.key, fate, ruling.rule, ruling.reason, held=not carried))
        return replace(settled, output=output, ruling=ruling, marker=True)

    # -- the train loop's side

    async def take(
        self, *, interruptible: bool = True, fills: Callable[[Settled[OutputT]], bool] = lambda settled: True
    ) -> Settled[OutputT]:
        """The next settled group, in completion order; without yielding when there is one.

        `fills`: whether it fills one of the step's places.

        Raises what ended the run, StopRequested when a stop was asked for and the step may still be dropped
        (`interruptible`), DriverEnded
        when no result can come any more.
        """
        if not self._running:
            await asyncio.sleep(0)  # a task made for run() begins with the next turn of the loop
        since = self._clock()
        while True:
            if isinstance(self._failure, self._options.fatal):
                raise self._failure
            if self._ended or not self._running:
                raise DriverEnded("the dispatcher is not running") from self._failure
            if interruptible and self.stopping:
                raise StopRequested
            if self._queue:
                settled = self._queue.popleft()
                counted = self.dispatcher.counted
                self.dispatcher.dequeued(settled.key, fills=fills(settled))
                if self.dispatcher.counted > counted:
                    self._say_if_starving()
                self._wake.set()
                self.traffic.takes.add(self._clock() - since)
                return settled
            if self._idle and not self._wake.is_set() and not self.dispatcher.running:
                raise DriverEnded(f"no group runs and none can start: {self.dispatcher.describe()}")
            self._arrived.clear()
            await self._arrived.wait()

    def _say_if_starving(self) -> None:
        places, batch = self.dispatcher.places, self.dispatcher.settings.batch_size
        if places.counted % (10 * batch) == 0 and places.filled < batch and not places.closed:
            logger.warning(
                "this step counted %d groups and has %d of the %d it trains; see why groups fail or are turned away",
                places.counted,
                places.filled,
                batch,
            )

    @property
    def ready(self) -> int:
        """Settled groups that wait to be taken."""
        return len(self._queue)

    def commit(self, fates: Mapping[Key, Fate]) -> None:
        """The step's updates are done: each group it took has its fate."""
        records = self.dispatcher.commit(fates)
        for key in fates:
            del self._results[key]
        self._report(records)
        self._wake.set()

    def step_started(self, version: int) -> None:
        """The next step begins, at this policy version."""
        self.dispatcher.version = version
        self.dispatcher.step_started()
        self._wake.set()

    # -- saving and going on

    def state(self) -> DriverState[OutputT]:
        """The dispatcher's state and the groups a checkpoint must keep, of one moment."""
        return DriverState(self.dispatcher.state(), tuple(self._results.values()))

    def load_state(self, state: Mapping[str, Any], kept: Iterable[KeptGroup[OutputT]] = ()) -> tuple[str, ...]:
        """Go on from an earlier start before this one runs; gives warnings to log.

        ValueError when the state does not read: nothing has changed then, and `dispatcher.seek` may follow.
        """
        groups = {group.key: group for group in kept}
        restored = self.dispatcher.load_state(state, list(groups))
        for key in restored.kept:
            group = groups[key]
            draw = self.dispatcher.keep(key, version=group.version, reason=group.reason, score=group.score)
            settled = Settled(draw, group.output, group.error, group.seconds)
            self._results[key] = settled
            self._queue.append(settled)
        self._report(restored.records)
        return restored.warnings

    def in_flight(self) -> dict[str, float]:
        """Time-weighted counts since the last call; keys as under `rollout_client/`."""
        return self.traffic.in_flight(self._clock())

    def blocked_shares(self) -> dict[str, float]:
        """Share of the time since the last call in which nothing could start, by reason."""
        return self.traffic.blocked_shares(self._clock())

    def _report(self, records: Iterable[Record]) -> None:
        for record in records:
            self.traffic.note(record)
            self.hooks.on_event(record.event())
            if isinstance(record, Drawn):
                self.hooks.on_draw(record.draw)
            elif isinstance(record, Fated):
                self.hooks.on_fate(record.key, record.fate)
            self._say_of_skip(record)

    def _say_of_skip(self, record: Record) -> None:
        """The first position that a label, or an entry that decides late, could not keep."""
        if isinstance(record, SlotSkipped) and record.why == "backlog":
            whose = f"environment {record.entry!r}"
        elif isinstance(record, Fated) and record.fate == "skipped":
            whose = f"label {record.label!r}"
        else:
            return
        if whose not in self._skipping:
            self._skipping.add(whose)
            most = self.dispatcher.settings.backlog_limit
            logger.warning(
                "%s: %d draws wait for it already; further ones are skipped and never train. Raise its limit in "
                "train.rollout_group_limits, or draw it less often",
                whose,
                most,
            )
