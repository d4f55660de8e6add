"""Recording a run in Prefect: every use of a Prefect internal lives here, each with a test.

Prefect records and never decides. A `recorded` coroutine runs exactly once whatever the API does: its result and its
exception come from the coroutine, not from Prefect, and a step waits for the API for 1.8 s at most. What an outage lost
is put right once the API answers again (`tasks.recorder`). Orders (a cancelled or aborted run) are obeyed. Outside
`recording(...)` nothing is recorded and Prefect is not imported.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import math
import os
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from contextvars import ContextVar
from importlib import import_module
from types import TracebackType
from typing import Any, Generic, NoReturn, ParamSpec, TypeVar
from uuid import UUID

import httpx

from tasks.breaker import OPEN_SECONDS
from tasks.endpoint import Endpoint, healthy
from tasks.recorder import BUSY, PATIENCE_SECONDS, Box, Recorder, busy, first_line, transport_error
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
TOP_PATIENCE_SECONDS = 20.0  # what the run itself may: nothing is recorded under a run that could not begin
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


_RECORDER: ContextVar[Recorder | None] = ContextVar("platoon_recorder", default=None)
_BOX: ContextVar[Box[Any] | None] = ContextVar("platoon_box", default=None)


@contextmanager
def call_of(box: Box[Any]) -> Iterator[None]:
    """What Prefect asks the API within, it asks for this call."""
    token = _BOX.set(box)
    try:
        yield
    finally:
        _BOX.reset(token)


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
        if error is None or error is box.error:
            return False
        if recorder is None:
            log.debug("a phase was not recorded: %s", first_line(error))
            return isinstance(error, Exception)
        if transport_error(error):
            self.busy = busy(error)
            recorder.lost(error, box, current_run_id())
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
    else:
        with _root_logging_kept():
            import_module("prefect.main")
    # During an outage Prefect prints each event and each batch of log lines that it drops; the breaker's one line says
    # it. After the import, whose logging configuration resets the levels of its loggers.
    logging.raiseExceptions = False
    for name in ("prefect.events.clients", "EventsWorker"):
        logging.getLogger(name).setLevel(logging.CRITICAL)


@contextmanager
def recording(
    endpoint: Endpoint | None, open_seconds: float = OPEN_SECONDS, patience: float = PATIENCE_SECONDS
) -> Iterator[Recorder | None]:
    """Within it, `recorded` coroutines are recorded at `endpoint`; with None they just run.

    `open_seconds`: how long an API that failed is left alone. `patience`: seconds that a step waits for it in all.
    """
    recorder = None
    if endpoint is not None:
        configure_environment(endpoint)
        recorder = Recorder(endpoint, open_seconds, patience)
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
            patience = recorder.patience if current_run_id() else max(recorder.patience, TOP_PATIENCE_SECONDS)
            box: Box[T] = Box(patience=patience)
            began = time.monotonic()
            with recorder.call(box):
                for _ in range(ATTEMPTS):
                    with _Attempt(box, recorder) as attempt, _tagged(tags):
                        async with _client_in_a_hurry():
                            await flow(*args, **kwargs)
                    if box.started or not attempt.busy:
                        break
                    await asyncio.sleep(BUSY_SECONDS)
            recorder.took(patience - box.patience, time.monotonic() - began)
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
    if recorder is not None and (recorder.incomplete or recorder.breaker.is_open):
        await recorder.allow(at_once=True)


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


class Hurried(httpx.AsyncBaseTransport):
    """What Prefect's HTTP client sends goes through here: a recorded call waits for the API as long as its box allows.

    Prefect tries a connection 4 times, which cost 1.5 s a call to a dead API, and it sleeps 2 s after a 503 or 429 even
    where it will not try again, unless the answer says how long. There are no settings for it. Requests that are not
    part of a recorded call's begin or end (the reporter's, say) pass as they are.
    """

    def __init__(self, inner: httpx.AsyncBaseTransport) -> None:
        self._inner = inner
        if isinstance(inner, httpx.AsyncHTTPTransport) and hasattr(inner._pool, "_retries"):
            inner._pool._retries = 0

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        box = _BOX.get()
        if box is None or box.inside:
            response = await self._inner.handle_async_request(request)
        else:
            response = await self._within(box, request)
        if response.status_code in BUSY:
            response.headers.setdefault("Retry-After", str(BUSY_SECONDS))
        return response

    async def _within(self, box: Box[Any], request: httpx.Request) -> httpx.Response:
        if box.patience <= 0:
            raise httpx.ConnectTimeout("no patience left for the API in this call", request=request)
        began, left = time.monotonic(), box.patience
        try:
            async with asyncio.timeout(left if math.isfinite(left) else None):
                return await self._inner.handle_async_request(request)
        except TimeoutError as error:
            raise httpx.ReadTimeout("it answers too slowly for a step to wait", request=request) from error
        except httpx.TransportError:
            left = 0.0  # it is away: what else the call would ask it fails at once
            raise
        finally:
            box.patience = left - (time.monotonic() - began)

    async def aclose(self) -> None:
        await self._inner.aclose()


@asynccontextmanager
async def _client_in_a_hurry() -> AsyncIterator[None]:
    """The client that a flow called here will use, with its transport `Hurried`."""
    from prefect.context import AsyncClientContext

    async with AsyncClientContext.get_or_create() as context:
        hurry(context.client._client)
        yield


def hurry(client: httpx.AsyncClient) -> None:
    """Put `Hurried` around the transports of a client, once."""
    if not isinstance(client._transport, Hurried):
        client._transport = Hurried(client._transport)
        client._mounts = {at: one and Hurried(one) for at, one in client._mounts.items()}


def be_patient() -> None:
    """For the end of a run that a worker started: its last state is worth waiting for a server that restarts.

    Holds for the asyncio task that calls it, so that another run of this process does not wait in its steps.
    """
    from prefect.context import SettingsContext, get_settings_context
    from prefect.settings import PREFECT_CLIENT_MAX_RETRIES

    context = get_settings_context()
    patient = context.settings.copy_with_update(updates={PREFECT_CLIENT_MAX_RETRIES: 5})
    SettingsContext(profile=context.profile, settings=patient).__enter__()


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
        box = _BOX.get()
        if box is None or box.started:
            return  # a second attempt of the same call: its body has run
        box.run_id = current_run_id()
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
    body raises is reported by the command that ran it: Prefect's copy of the traceback goes to the API only.
    """
    root, requests = logging.getLogger(), logging.getLogger("httpx")
    handlers, level = root.handlers[:], root.level
    if requests.level == logging.NOTSET:
        requests.setLevel(logging.WARNING)
    yield
    for name in ("prefect.flow_runs", "prefect.task_runs"):
        logging.getLogger(name).propagate = False
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
