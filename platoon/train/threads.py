"""Blocking calls of foreign code, awaited from the run's loop without being able to keep the process alive."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

T = TypeVar("T")


async def in_thread(call: Callable[[], T]) -> T:
    """The result of `call`, run on a daemon thread of its own.

    A caller that is cancelled, or whose deadline passes, leaves the thread behind; unlike a thread of asyncio's pool it
    is not waited for when the loop closes, so that a service that never answers cannot hold up the end of a run.
    """
    made: Future[T] = Future()

    def run() -> None:
        try:
            result = call()
        except Exception as error:  # foreign code: whatever it raises belongs to the awaiting caller
            if not made.cancelled():
                made.set_exception(error)
        else:
            if not made.cancelled():
                made.set_result(result)

    made.set_running_or_notify_cancel()
    threading.Thread(target=run, name="platoon-service-call", daemon=True).start()
    return await asyncio.wrap_future(made)
