"""Running a flow to its end from a command, a script or a notebook.

From the main thread the flow runs on a thread of its own with its own event loop, so that the main thread owns the
signals: Prefect installs handlers of its own wherever a flow runs in the main thread. Recording is decided here too.
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
import os
import signal
import threading
import time
import traceback
from collections.abc import Callable, Coroutine, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from types import FrameType
from typing import Any, Generic, NoReturn, TypeVar

from platoon.config import ConfigError, Loaded
from platoon.config.partial import Partial
from platoon.train.stop import StopRequest
from tasks.endpoint import Orchestration, choose_api
from tasks.recorder import Recorder
from tasks.recording import away, leave, recording

T = TypeVar("T")
log = logging.getLogger("platoon.orchestration")
FORCED = 1
WAKE_SECONDS = 0.2
LEAVE_SECONDS = 25.0  # a worker kills a cancelled run after 30


def in_loop() -> bool:
    """Whether the caller runs inside an event loop (a notebook cell does)."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


@contextmanager
def chosen_recording(loaded: Loaded | Partial, orchestration: Orchestration | None) -> Iterator[Recorder | None]:
    """Record what runs within at the API that the config, or `orchestration` over it, asks for."""
    own: Orchestration = loaded.config.orchestration if isinstance(loaded, Loaded) else "auto"
    endpoint = choose_api(orchestration or own)
    if endpoint is not None:
        log.info("recording in Prefect: %s", endpoint.url.removesuffix("/api"))
    with recording(endpoint) as recorder:
        yield recorder


def run_to_end(
    work: Callable[[], Coroutine[Any, Any, T]],
    stop: StopRequest | None = None,
    forced: Callable[[], None] | None = None,
) -> T:
    """Run `work()` in a loop of its own and return its result; call it outside a loop.

    With `stop` in the main thread: the first SIGINT or SIGTERM asks for the stop and the second calls `forced`;
    SIGUSR2 asks for the stop, SIGUSR1 calls `forced`. Without `forced` the second one cancels the work. Elsewhere and
    without `stop` signals keep their handlers.
    """
    if threading.current_thread() is not threading.main_thread():
        return asyncio.run(work())
    side = _SideThread(work)
    with _signals(stop, forced or side.cancel) if stop is not None else _interrupts(side.cancel):
        return side.run()


async def run_beside(work: Callable[[], Coroutine[Any, Any, T]], stop: StopRequest | None = None) -> T:
    """Run `work()` on a thread with a loop of its own and wait for it here. Call it in the flow of a worker.

    Prefect ends such a process by an exception in its main thread, which cancels every task of the loop there at once:
    a step would be torn. Here that asks for the stop (without `stop`: cancels the work), gives it `LEAVE_SECONDS` to
    save and leave, and then lets the cancellation go on.
    """
    side = _SideThread(work)
    thread = ThreadPoolExecutor(1, thread_name_prefix="platoon-flow")
    running = thread.submit(contextvars.copy_context().run, side.start)
    thread.shutdown(wait=False)
    try:
        return await asyncio.shield(asyncio.wrap_future(running))
    except asyncio.CancelledError:
        if running.done():
            raise
        log.warning("cancelled: stopping at the next safe point, within %.0f s", LEAVE_SECONDS)
        if stop is not None:
            stop.request("cancelled")
        else:
            side.cancel()
        if not _until_done(running, LEAVE_SECONDS):
            log.warning("not left within %.0f s; the run goes on from its newest checkpoint", LEAVE_SECONDS)
            side.cancel()
        raise


def _until_done(running: Future[Any], seconds: float) -> bool:
    """Wait here, in the main thread, whatever signals come: a cluster and Prefect's supervisor both send SIGTERM, and
    Prefect's handler would end the process in the middle of the save. It stays installed: without it Prefect kills.
    """
    from prefect.exceptions import TerminationSignal

    deadline = time.monotonic() + seconds
    while (left := deadline - time.monotonic()) > 0:
        try:
            return bool(wait([running], left).done)
        except TerminationSignal:
            continue
    return running.done()


def force_exit() -> NoReturn:
    """End the process at once, as a second signal asks."""
    os._exit(FORCED)


def finish_command(recorder: Recorder | None, code: int) -> int:
    """The last act of a command: `code`, or the process ends with it here when Prefect's API is away."""
    if away(recorder):
        leave(code)
    return code


@contextmanager
def exit_guard(recorder: Recorder | None) -> Iterator[None]:
    """Let a failing command end soon, too: Prefect's exit would wait for an API that is away."""
    try:
        yield
    except ConfigError:
        raise
    except Exception:
        if away(recorder):
            traceback.print_exc()
            leave(1)
        raise


class _SideThread(Generic[T]):
    """A coroutine on a thread with an event loop of its own; another thread can cancel it."""

    def __init__(self, work: Callable[[], Coroutine[Any, Any, T]]) -> None:
        self._work = work
        self._main: tuple[asyncio.AbstractEventLoop, asyncio.Task[T]] | None = None

    def run(self) -> T:
        context = contextvars.copy_context()
        with ThreadPoolExecutor(1, thread_name_prefix="platoon-flow") as thread:
            # result() waits interruptibly: handlers of signals run in this thread
            work = thread.submit(context.run, self.start)
            # In short waits: Python runs handlers in this thread alone, and when the kernel gave the signal to another
            # one, nothing but the end of a wait wakes it.
            while not wait([work], timeout=WAKE_SECONDS).done:
                continue
            return work.result()

    def cancel(self) -> None:
        if self._main is not None:
            loop, task = self._main
            loop.call_soon_threadsafe(task.cancel)

    def start(self) -> T:
        """The thread's work: the coroutine to its end."""
        return asyncio.run(self._run())

    async def _run(self) -> T:
        loop = asyncio.get_running_loop()
        task: asyncio.Task[T] = loop.create_task(self._work())
        self._main = (loop, task)
        return await task


@contextmanager
def _signals(stop: StopRequest, forced: Callable[[], object]) -> Iterator[None]:
    asked = 0

    def ask(number: int, frame: FrameType | None) -> None:
        nonlocal asked
        name = signal.Signals(number).name
        asked += number != signal.SIGUSR2
        if asked > 1:
            log.warning("%s again: leaving now", name)
            forced()
            return
        log.warning("%s: stopping at the next safe point (again: at once)", name)
        stop.request(name)

    def force(number: int, frame: FrameType | None) -> None:
        forced()

    handlers = {signal.SIGINT: ask, signal.SIGTERM: ask, signal.SIGUSR2: ask, signal.SIGUSR1: force}
    with _handlers(handlers):
        yield


@contextmanager
def _interrupts(cancel: Callable[[], None]) -> Iterator[None]:
    """Ctrl-C or SIGTERM during work that has no stop request: cancel it, then behave as usual."""
    seen: list[int] = []

    def interrupt(number: int, frame: FrameType | None) -> None:
        seen.append(number)
        cancel()

    with _handlers({signal.SIGINT: interrupt, signal.SIGTERM: interrupt}):
        try:
            yield
        except asyncio.CancelledError:
            if not seen:
                raise
            if signal.SIGINT in seen:
                raise KeyboardInterrupt from None
            raise SystemExit(128 + seen[0]) from None


@contextmanager
def _handlers(handlers: Mapping[signal.Signals, Callable[[int, FrameType | None], None]]) -> Iterator[None]:
    before = {number: signal.signal(number, handler) for number, handler in handlers.items()}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
