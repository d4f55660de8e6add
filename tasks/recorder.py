"""One run's link to one Prefect API: what it lost while the API was away, and how that is set right.

Nothing here decides whether a step runs. A step waits for the API only while a call of its own is under way, within its
`Box`'s patience; finding a lost API back and telling it what it missed is the work of `Recorder.watch`, beside the
steps. Without a watch (an evaluation, a script) the next recorded call does it.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar
from uuid import UUID

import httpx

from tasks.breaker import OPEN_SECONDS, Breaker
from tasks.endpoint import HEALTH_SECONDS, Endpoint

T = TypeVar("T")
BUSY = (429, 503)
PATIENCE_SECONDS = 1.8  # that a step may wait for the API in all
WATCH_SECONDS = 2.0  # between two looks for a lost API
USUAL_SECONDS, USUAL_SHARE = 1.0, 0.05  # of waiting in a call that nobody minds: so long, and so much of its time
DEBT_SECONDS = 3.0  # of waiting beyond that, until the API counts as too slow
log = logging.getLogger("platoon.orchestration")


@dataclass
class Box(Generic[T]):
    """What the body did, as opposed to what Prefect says about it.

    `patience`: seconds that the call may still wait for the API, before its body and after it.
    """

    started: bool = False
    done: bool = False
    value: T | None = None
    error: BaseException | None = None
    run_id: UUID | None = None
    patience: float = math.inf

    @property
    def inside(self) -> bool:
        """Whether the body is running."""
        return self.started and not self.done and self.error is None

    async def run(self, body: Callable[[], Awaitable[T]]) -> None:
        self.started = True
        try:
            self.value = await body()
            self.done = True
        except BaseException as error:
            self.error = error
            raise

    def result(self) -> T:
        if self.error is not None:
            raise self.error
        return self.value  # type: ignore[return-value]


@dataclass
class Recorder:
    """One run's link to one API: its breaker and the flow runs whose end the API did not hear of."""

    endpoint: Endpoint
    open_seconds: float = OPEN_SECONDS
    patience: float = PATIENCE_SECONDS
    breaker: Breaker = field(init=False)
    orphans: dict[UUID, bool] = field(default_factory=dict)  # flow run id -> whether its body succeeded
    parents: set[UUID] = field(default_factory=set)  # flow runs under which something went unrecorded
    under_way: list[Box[Any]] = field(default_factory=list)
    _calls: int = 0
    _told: bool = False  # whether the log says that the API is away
    _debt: float = 0.0
    _watch: asyncio.Event | None = None

    def __post_init__(self) -> None:
        self.breaker = Breaker(self._probe, open_seconds=self.open_seconds, recover=self._settle)

    async def _probe(self) -> bool:
        try:
            async with httpx.AsyncClient(timeout=HEALTH_SECONDS, headers=dict(self.endpoint.headers)) as client:
                return (await client.get(f"{self.endpoint.url}/health")).is_success
        except httpx.HTTPError:
            return False

    @contextmanager
    def call(self, box: Box[Any]) -> Iterator[None]:
        """Around a recorded call: until it ends, its flow run is nobody else's to end."""
        self.under_way.append(box)
        self._calls += 1
        try:
            yield
        finally:
            self.under_way = [one for one in self.under_way if one is not box]

    @property
    def incomplete(self) -> bool:
        return bool(self.orphans or self.parents)

    async def allow(self, *, at_once: bool = False) -> bool:
        """Whether the API may be called now. Where nobody watches, what an outage lost is set right first."""
        watched = self._watch is not None and not at_once
        if (watched and self.breaker.is_open) or not await self.breaker.allow(at_once=at_once):
            self._tell("it does not answer")
            return False
        if self.incomplete and not watched:
            await self._settle()
        if self._told and not self.breaker.is_open:
            self._told = False
            log.info("the Prefect API at %s is back; what it lost was set right", self.endpoint.url)
        return not self.breaker.is_open

    async def watch(self) -> None:
        """Find a lost API back and set right what it missed, so that no step waits for either. Ends by cancellation.

        Run it in an empty context: the client of the flow run's context is in no hurry there.
        """
        self._watch = woken = asyncio.Event()
        self.breaker.open_seconds = min(self.open_seconds, WATCH_SECONDS)
        try:
            while True:
                while self.breaker.is_open:
                    await asyncio.sleep(self.breaker.due)
                    await self.breaker.allow()
                if self.incomplete and not await self._settle() and not self.breaker.is_open:
                    await asyncio.sleep(WATCH_SECONDS)
                elif not self.incomplete and not self.breaker.is_open:
                    woken.clear()
                    await woken.wait()
        finally:
            self._watch = None
            self.breaker.open_seconds = self.open_seconds

    def lost(self, error: BaseException, box: Box[Any], parent: UUID | None = None) -> None:
        """Note that the API failed during a call whose body is `box`. One that is merely busy is not left alone."""
        if box.run_id is not None:
            self.orphans[box.run_id] = box.done
        if parent is not None:
            self.parents.add(parent)
        if not busy(error):
            self.trip(error)
        self._wake()

    def took(self, waited: float, seconds: float) -> None:
        """Note that a call of `seconds` waited so many of them for the API: one that stays slow is left alone."""
        self._debt = max(0.0, self._debt + waited - USUAL_SECONDS - USUAL_SHARE * seconds)
        if self._debt > DEBT_SECONDS:
            self.trip(TimeoutError(f"it is slow: {waited:.1f} s for the last step"))

    def trip(self, error: BaseException) -> None:
        """Leave the API alone for a while; said once an outage."""
        self._debt = 0.0
        self.breaker.trip()
        self._tell(first_line(error))
        self._wake()

    def _wake(self) -> None:
        if self._watch is not None:
            self._watch.set()

    def _tell(self, why: str) -> None:
        if not self._told:
            self._told = True
            log.warning("the Prefect API at %s failed (%s); the run goes on unrecorded", self.endpoint.url, why)

    async def _settle(self) -> bool:
        """Give the flow runs that the API lost their true state; False when that is for later. Never raises.

        Flow runs created but never begun are cancelled.
        """
        if not self.incomplete:
            return True
        from prefect import get_client

        try:
            async with get_client() as client:
                for run_id, succeeded in list(self.orphans.items()):
                    await _set_end(client, run_id, succeeded)
                    self.orphans.pop(run_id, None)
                for parent in list(self.parents):
                    if not await self._cancel_unbegun(client, parent):
                        return False
                    self.parents.discard(parent)
        except Exception as error:
            if not transport_error(error):
                log.warning("what the Prefect API lost stays as it is: %s", first_line(error))
                self.orphans.clear()
                self.parents.clear()
                return True
            if not busy(error) and not self.breaker.is_open:
                self.trip(error)
            return False
        return True

    async def _cancel_unbegun(self, client: Any, parent: UUID) -> bool:
        """False when a call that is about to begin could be among them: then it is for later."""
        from prefect.client.schemas.filters import FlowRunFilter
        from prefect.client.schemas.objects import StateType
        from prefect.states import Cancelled

        state = {"type": {"any_": [StateType.PENDING, StateType.RUNNING]}}
        lost = FlowRunFilter.model_validate({"parent_flow_run_id": {"any_": [parent]}, "state": state})
        quiet, calls = all(box.started for box in self.under_way), self._calls
        found = await client.read_flow_runs(flow_run_filter=lost)
        if not quiet or calls != self._calls:
            return False
        for run in found:
            if all(run.id != box.run_id for box in self.under_way):
                message = "Set by platoon: the step ran unrecorded while the API was away."
                await client.set_flow_run_state(run.id, Cancelled(message=message), force=True)
        return True


async def _set_end(client: Any, run_id: UUID, succeeded: bool) -> None:
    from prefect.exceptions import ObjectNotFound
    from prefect.states import Completed, Failed

    message = "Set by platoon: the API was away when the run ended."
    state: Any = Completed(message=message) if succeeded else Failed(message=message)
    try:
        await client.set_flow_run_state(run_id, state, force=True)
    except ObjectNotFound:
        log.debug("flow run %s was deleted", run_id)


def transport_error(error: BaseException) -> bool:
    """Whether an exception that left Prefect is trouble with the API, seen anywhere in its chain.

    Orders never count: `Abort`, `Pause`, cancellation and termination are BaseExceptions, and `CancelledRun` and its
    like say what someone decided about the run.
    """
    if not isinstance(error, Exception) or _from_prefect(error, ("CancelledRun", "CrashedRun", "PausedRun")):
        return False
    seen: set[int] = set()
    waiting: list[BaseException] = [error]
    while waiting:
        one = waiting.pop()
        if id(one) in seen:
            continue
        seen.add(id(one))
        if isinstance(one, httpx.HTTPError | httpx.StreamError | ConnectionError):
            return True
        if _from_prefect(one, ("ObjectNotFound", "ObjectAlreadyExists")):
            return True  # the run was deleted, or exists already: the record is wrong, the work is not
        if isinstance(one, BaseExceptionGroup):
            waiting.extend(one.exceptions)
        waiting.extend(cause for cause in (one.__cause__, one.__context__) if cause is not None)
    return False


def busy(error: BaseException) -> bool:
    """Whether the API answered that it cannot now: a write conflict of SQLite, or a limit. It is up."""
    seen: set[int] = set()
    at: BaseException | None = error
    while at is not None and id(at) not in seen:
        seen.add(id(at))
        if isinstance(at, httpx.HTTPStatusError):
            return at.response.status_code in BUSY
        at = at.__cause__ or at.__context__
    return False


def _from_prefect(error: BaseException, names: Sequence[str]) -> bool:
    """Told by name, so that an unrecorded run does not import Prefect to look at an exception."""
    return type(error).__module__ == "prefect.exceptions" and type(error).__name__ in names


def first_line(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}".splitlines()[0][:200]
