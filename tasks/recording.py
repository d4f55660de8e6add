"""Recording a run in Prefect: every use of a Prefect internal lives here, each with a test.

Prefect records and never decides. A `recorded` coroutine runs exactly once whatever the API does: its result and its
exception come from the coroutine, not from Prefect. Failures of the API are noted, left alone for 15 s and put right
once it answers again. Orders (a cancelled or aborted run) are obeyed. Outside `recording(...)` nothing is recorded and
Prefect is not imported.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import math
import os
import sys
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from importlib import import_module
from types import TracebackType
from typing import Any, Generic, NoReturn, ParamSpec, TypeVar
from uuid import UUID

import httpx

from tasks.breaker import OPEN_SECONDS, Breaker
from tasks.endpoint import HEALTH_SECONDS, Endpoint, healthy
from tasks.run_logs import bound_rate

P = ParamSpec("P")
T = TypeVar("T")
STEP_EVENT = {
    "reward": "train/batch/task_reward/avg",
    "pass_at_1": "train/tasks/pass_at_1",
    "pass_at_G": "train/tasks/pass_at_G",
    "stale_groups": "train/batch/stale_groups",
}
ATTEMPTS = 3  # to begin a flow run at a server that is busy
BUSY_SECONDS = 0.1
BUSY = (429, 503)
log = logging.getLogger("platoon.orchestration")

SETTINGS = {
    "PREFECT_CLIENT_MAX_RETRIES": "0",  # a retry waits 2 s inside the step; what is lost is set right later
    "PREFECT_API_REQUEST_TIMEOUT": "10",
    "PREFECT_EVENTS_WORKER_MAX_QUEUE_SIZE": "2000",
    "PREFECT_LOGGING_EXTRA_LOGGERS": "platoon",
    "PREFECT_LOGGING_LEVEL": "WARNING",
    "PREFECT_LOGGING_INTERNAL_LEVEL": "CRITICAL",
    "PREFECT_LOGGING_TO_API_WHEN_MISSING_FLOW": "ignore",
    "PREFECT_SERVER_ALLOW_EPHEMERAL_MODE": "false",
    "DO_NOT_TRACK": "1",
}


@dataclass
class Box(Generic[T]):
    """What the body did, as opposed to what Prefect says about it."""

    started: bool = False
    done: bool = False
    value: T | None = None
    error: BaseException | None = None
    run_id: UUID | None = None

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
    breaker: Breaker = field(init=False)
    orphans: dict[UUID, bool] = field(default_factory=dict)  # flow run id -> whether its body succeeded
    parents: set[UUID] = field(default_factory=set)  # flow runs under which something went unrecorded
    live: set[UUID] = field(default_factory=set)
    _told: bool = False  # whether the log says that the API is away

    def __post_init__(self) -> None:
        self.breaker = Breaker(self._probe, open_seconds=self.open_seconds)

    async def _probe(self) -> bool:
        try:
            async with httpx.AsyncClient(timeout=HEALTH_SECONDS, headers=dict(self.endpoint.headers)) as client:
                return (await client.get(f"{self.endpoint.url}/health")).is_success
        except httpx.HTTPError:
            return False

    async def allow(self) -> bool:
        """Whether the API may be called now; on its recovery the orphans are set right first."""
        if not await self.breaker.allow():
            self._tell("it does not answer")
            return False
        if self.orphans or self.parents:
            await self._settle()
        if self._told and not self.breaker.is_open:
            self._told = False
            log.info("the Prefect API at %s is back; what it lost was set right", self.endpoint.url)
        return not self.breaker.is_open

    def lost(self, error: BaseException, box: Box[Any]) -> None:
        """Note that the API failed during a call whose body is `box`. One that is merely busy is not left alone."""
        if not busy(error):
            self.trip(error)
        if box.run_id is not None:
            self.orphans[box.run_id] = box.done
        if (parent := current_run_id()) is not None:
            self.parents.add(parent)

    def trip(self, error: BaseException) -> None:
        """Leave the API alone for a while; said once an outage."""
        self.breaker.trip()
        self._tell(_line(error))

    def _tell(self, why: str) -> None:
        if not self._told:
            self._told = True
            log.warning("the Prefect API at %s failed (%s); the run goes on unrecorded", self.endpoint.url, why)

    async def _settle(self) -> None:
        """Give the flow runs that the API lost their true state. Flow runs created but never begun are cancelled."""
        from prefect import get_client
        from prefect.client.schemas.filters import FlowRunFilter
        from prefect.client.schemas.objects import StateType
        from prefect.states import Cancelled, Completed, Failed

        try:
            async with get_client() as client:
                for run_id, succeeded in list(self.orphans.items()):
                    message = "Set by platoon: the API was away when the run ended."
                    state: Any = Completed(message=message) if succeeded else Failed(message=message)
                    await client.set_flow_run_state(run_id, state, force=True)
                    del self.orphans[run_id]
                for parent in list(self.parents):
                    lost = FlowRunFilter.model_validate(
                        {
                            "parent_flow_run_id": {"any_": [parent]},
                            "state": {"type": {"any_": [StateType.PENDING, StateType.RUNNING]}},
                        }
                    )
                    for run in await client.read_flow_runs(flow_run_filter=lost):
                        if run.id not in self.live:
                            message = "Set by platoon: the step ran unrecorded while the API was away."
                            await client.set_flow_run_state(run.id, Cancelled(message=message), force=True)
                    self.parents.discard(parent)
        except Exception as error:
            if not transport_error(error):
                raise
            if not busy(error):
                self.trip(error)


_RECORDER: ContextVar[Recorder | None] = ContextVar("platoon_recorder", default=None)
_BOX: ContextVar[Box[Any] | None] = ContextVar("platoon_box", default=None)


class _Attempt:
    """Around a call of a flow (with `recorder`) or of a task: decides about what leaves it.

    The body's own exception passes. A flow's trouble with the API is noted and ends here; orders pass. A task has no
    orders of its own, so any failure of Prefect's ends here.
    """

    def __init__(self, box: Box[Any], recorder: Recorder | None = None) -> None:
        self._box = box
        self._recorder = recorder
        self.busy = False

    def __enter__(self) -> _Attempt:
        self._token = _BOX.set(self._box)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> bool:
        _BOX.reset(self._token)
        box, recorder = self._box, self._recorder
        if recorder is not None and box.run_id is not None:
            recorder.live.discard(box.run_id)
        if error is None or error is box.error:
            return False
        if recorder is None:
            log.debug("a phase was not recorded: %s", _line(error))
            return isinstance(error, Exception)
        if transport_error(error):
            self.busy = busy(error)
            recorder.lost(error, box)
            return True
        return box.error is not None  # Prefect wrapped it; `result` raises the body's own


class Attempted(Generic[T]):
    """Around a task whose body may run several times: its last try counts, Prefect's own failure ends here."""

    def __init__(self) -> None:
        self._box: Box[T] = Box()

    @property
    def error(self) -> BaseException | None:
        return self._box.error

    @property
    def ended(self) -> bool:
        """Whether a try ran to its end, well or not."""
        return self._box.done or self._box.error is not None

    def result(self) -> T:
        return self._box.result()

    async def run(self, body: Callable[[], Awaitable[T]]) -> None:
        self._box = Box()
        await self._box.run(body)

    def __enter__(self) -> None:
        return

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> bool:
        return isinstance(error, Exception) and error is not self._box.error


def configure_environment(endpoint: Endpoint) -> None:
    """Set the environment for Prefect; values the user set stay, except the API's address. Call before the import.

    Where Prefect is already imported (a notebook) its settings are read again.
    """
    for name, value in SETTINGS.items():
        os.environ.setdefault(name, value)
    os.environ["PREFECT_API_URL"] = endpoint.url
    if "prefect" in sys.modules:
        from prefect.context import refresh_global_settings_context

        refresh_global_settings_context()
        return
    with _root_logging_kept():
        import_module("prefect.main")


@contextmanager
def recording(endpoint: Endpoint | None, open_seconds: float = OPEN_SECONDS) -> Iterator[Recorder | None]:
    """Within it, `recorded` coroutines are recorded at `endpoint`; with None they just run.

    `open_seconds`: how long an API that failed is left alone.
    """
    recorder = None
    if endpoint is not None:
        configure_environment(endpoint)
        recorder = Recorder(endpoint, open_seconds)
        _bound_logs(recorder)
    token = _RECORDER.set(recorder)
    try:
        yield recorder
    finally:
        _RECORDER.reset(token)


def recorded(
    name: str, run_name: str | None = None, tags: Sequence[str] = ()
) -> Callable[[Callable[P, Awaitable[T]]], Callable[P, Coroutine[Any, Any, T]]]:
    """Decorate a coroutine function: each call is a flow run called `run_name` (a template over the parameters).

    Parameters are sent to the API: pass paths and numbers, and let the function close over the rest.
    """

    def decorate(fn: Callable[P, Awaitable[T]]) -> Callable[P, Coroutine[Any, Any, T]]:
        flow: Callable[P, Awaitable[None]] | None = None

        @functools.wraps(fn)
        async def call(*args: P.args, **kwargs: P.kwargs) -> T:
            nonlocal flow
            recorder = _RECORDER.get()
            if recorder is None or not await recorder.allow():
                return await fn(*args, **kwargs)
            flow = flow or _as_flow(fn, name, run_name)
            box: Box[T] = Box()
            for _ in range(ATTEMPTS):
                with _Attempt(box, recorder) as attempt, _tagged(tags):
                    await flow(*args, **kwargs)
                if box.started or not attempt.busy:
                    break
                await asyncio.sleep(BUSY_SECONDS)
            if not box.started:
                return await fn(*args, **kwargs)
            if current_run_id() is None and not isinstance(box.error, asyncio.CancelledError):
                await settle()
            return box.result()

        return call

    return decorate


async def phase(name: str, body: Callable[[], Awaitable[T]]) -> T:
    """Run `body` as a Prefect task called `name` of the current flow run; Prefect's own failure never stops it."""
    recorder = _RECORDER.get()
    if recorder is None or recorder.breaker.is_open or current_run_id() is None:
        return await body()
    box: Box[T] = Box()
    with _Attempt(box):
        await _as_task(name)(body)
    return box.result() if box.started else await body()


async def settle() -> None:
    """At the end of a top flow's body: set right what an outage left, if the API answers again."""
    recorder = _RECORDER.get()
    if recorder is not None and (recorder.orphans or recorder.parents):
        await recorder.allow()


def step_finished(step: int, metrics: Mapping[str, float]) -> None:
    """Put an event `platoon.step.finished` with the step's numbers on the run's timeline. Never blocks, never raises.

    Under short names (`reward`, `pass_at_1`, `pass_at_G`, `stale_groups`) for automations, then up to 100 of the
    metrics as they are, so that the event stays within Prefect's limit.
    """
    recorder, run_id = _RECORDER.get(), current_run_id()
    if recorder is None or recorder.breaker.is_open or run_id is None:
        return
    named = {name: metrics[key] for name, key in STEP_EVENT.items() if key in metrics}
    numbers = {key: value for key, value in [*named.items(), *sorted(metrics.items())[:100]] if math.isfinite(value)}
    send_event("platoon.step.finished", run_id, {"step": step, **numbers})


def send_event(name: str, run_id: UUID, payload: Mapping[str, Any]) -> None:
    """Put an event on a flow run's timeline, where an automation can see it. Never blocks, never raises.

    Nothing is queued while the API is away.
    """
    recorder = _RECORDER.get()
    if recorder is None or recorder.breaker.is_open:
        return
    from prefect.events import emit_event

    emit_event(name, resource={"prefect.resource.id": f"prefect.flow-run.{run_id}"}, payload=dict(payload))


def current_recorder() -> Recorder | None:
    """The recorder of the `recording` block this code runs in."""
    return _RECORDER.get()


def trouble(recorder: Recorder, error: Exception) -> bool:
    """Whether an error of a report is trouble with the API. It is then left alone, unless it is merely busy."""
    if not isinstance(error, TimeoutError) and not transport_error(error):
        return False
    if not busy(error):
        recorder.trip(error)
    return True


def current_run_id() -> UUID | None:
    """The flow run this code runs in, if any."""
    if "prefect" not in sys.modules:
        return None
    from prefect.context import FlowRunContext

    context = FlowRunContext.get()
    run = context.flow_run if context is not None else None
    return run.id if run is not None else None


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


def without_pauses(retries: int = 0) -> None:
    """Let the client of the running flow try a connection `1 + retries` times, and wait 0.1 s after a busy answer.

    Prefect sets 3 retries on the connection pool of its HTTP client, which cost 1.5 s a call to a dead API; and it
    sleeps 2 s after a 503 or 429 even where it will not try again, unless the answer says how long. No settings for it.
    """
    from prefect.context import AsyncClientContext

    context = AsyncClientContext.get()
    if context is None:
        return
    inner = context.client._client
    transport = inner._transport_for_url(httpx.URL(str(context.client.api_url)))
    if isinstance(transport, httpx.AsyncHTTPTransport) and hasattr(transport._pool, "_retries"):
        transport._pool._retries = retries
    if _say_when not in inner.event_hooks["response"]:
        inner.event_hooks["response"].append(_say_when)


async def _say_when(response: httpx.Response) -> None:
    if response.status_code in BUSY:
        response.headers.setdefault("Retry-After", str(BUSY_SECONDS))


def be_patient() -> None:
    """For the end of a run that a worker started: its last state is worth waiting for a server that restarts.

    Holds for the asyncio task that calls it, so that another run of this process does not wait in its steps.
    """
    from prefect.context import SettingsContext, get_settings_context
    from prefect.settings import PREFECT_CLIENT_MAX_RETRIES

    context = get_settings_context()
    patient = context.settings.copy_with_update(updates={PREFECT_CLIENT_MAX_RETRIES: 5})
    SettingsContext(profile=context.profile, settings=patient).__enter__()
    without_pauses(retries=3)


def away(recorder: Recorder | None) -> bool:
    """Whether Prefect is in use and its API does not answer now."""
    return recorder is not None and (recorder.breaker.is_open or not healthy(recorder.endpoint))


def leave(code: int) -> NoReturn:
    """The exit guard: end the process with `code` at once, without Prefect's own exit.

    Prefect waits up to 7 s for each undelivered event, for minutes in all. Call it when the API is `away`, all of our
    own files are closed and nothing else is to be done in this process.
    """
    log.warning("the Prefect API is away: leaving without its last events")
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _as_flow(fn: Callable[P, Awaitable[Any]], name: str, run_name: str | None) -> Callable[P, Awaitable[None]]:
    from prefect import flow

    @functools.wraps(fn)
    async def tracked(*args: P.args, **kwargs: P.kwargs) -> None:
        box, recorder = _BOX.get(), _RECORDER.get()
        if box is None or box.started:
            return  # a second attempt of the same call: its body has run
        box.run_id = current_run_id()
        without_pauses()
        if recorder is not None and box.run_id is not None:
            recorder.live.add(box.run_id)
        await box.run(lambda: fn(*args, **kwargs))

    return flow(
        name=name,
        flow_run_name=run_name,
        persist_result=False,
        retries=0,
        validate_parameters=False,
        log_prints=False,
    )(tracked)


@functools.cache
def _as_task(name: str) -> Callable[[Callable[[], Awaitable[Any]]], Awaitable[None]]:
    from prefect import task
    from prefect.cache_policies import NO_CACHE
    from prefect.context import TagsContext

    async def tracked() -> None:
        box, body = _BODY.get()
        if not box.started:
            await box.run(body)

    made = task(name=name, task_run_name=name, cache_policy=NO_CACHE, persist_result=False, retries=0)(tracked)

    async def call(body: Callable[[], Awaitable[Any]]) -> None:
        box = _BOX.get()
        assert box is not None
        token = _BODY.set((box, body))
        try:
            # A task with tags asks the API for a concurrency slot of each before it starts: the run carries the tags.
            with TagsContext(current_tags=set()):
                await made()
        finally:
            _BODY.reset(token)

    return call


_BODY: ContextVar[tuple[Box[Any], Callable[[], Awaitable[Any]]]] = ContextVar("platoon_phase_body")


@contextmanager
def _tagged(tags: Sequence[str]) -> Iterator[None]:
    from prefect import tags as prefect_tags

    with prefect_tags(*tags):
        yield


@contextmanager
def _root_logging_kept() -> Iterator[None]:
    """Importing Prefect puts a console handler on the root logger; logging is configured by the command alone.

    A recorded step makes about ten requests, so httpx's line for each is kept out of the log unless asked for. What a
    body raises is reported by the command that ran it: Prefect's copy of the traceback goes to the API only. During an
    outage Prefect prints every event it drops, a screen each; the breaker's one line says it.
    """
    root, requests = logging.getLogger(), logging.getLogger("httpx")
    handlers, level = root.handlers[:], root.level
    if requests.level == logging.NOTSET:
        requests.setLevel(logging.WARNING)
    for name in ("prefect.flow_runs", "prefect.task_runs"):
        logging.getLogger(name).propagate = False
    for name in ("prefect.events.clients", "EventsWorker"):
        logging.getLogger(name).setLevel(logging.CRITICAL)
    yield
    root.handlers[:] = handlers
    root.setLevel(level)


def _bound_logs(recorder: Recorder) -> None:
    """Send platoon's lines from INFO on to the flow run's logs, so many a second."""
    from prefect.logging.handlers import APILogHandler

    ours = logging.getLogger("platoon")
    if ours.level == logging.NOTSET:
        ours.setLevel(logging.INFO)
    for handler in ours.handlers:
        if isinstance(handler, APILogHandler):
            bound_rate(handler, lambda: recorder.breaker.is_open)


def _from_prefect(error: BaseException, names: Sequence[str]) -> bool:
    """Told by name, so that an unrecorded run does not import Prefect to look at an exception."""
    return type(error).__module__ == "prefect.exceptions" and type(error).__name__ in names


def _line(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}".splitlines()[0][:200]
