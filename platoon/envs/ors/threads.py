"""Runs environment code that blocks: every call on a daemon thread of its own.

Never the loop's default executor: a call that hangs must not hold up name resolution or the end of the process.
The caller's context variables are copied into the thread.
"""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import threading
from collections.abc import Callable
from typing import Any

from platoon.extensions.boundary import Boundary, describe


async def run_user_callable(fn: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Call environment code: a coroutine function on the loop, a plain one on its own thread.

    A plain function that returns an awaitable has it awaited on the loop.
    """
    if inspect.iscoroutinefunction(fn):
        return await fn(*args, **kwargs)
    result = await in_thread(fn, *args, **kwargs)
    return await result if inspect.isawaitable(result) else result


async def in_thread(fn: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """`fn`'s result, computed on a new daemon thread. Cancelling the wait leaves the thread running."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[Any] = loop.create_future()
    context = contextvars.copy_context()

    def settle(result: Any, error: BaseException | None) -> None:
        if future.cancelled():
            return
        if error is None:
            future.set_result(result)
        elif isinstance(error, Exception) and not isinstance(error, StopIteration):
            future.set_exception(error)
        else:  # a future cannot carry StopIteration, and a tool's SystemExit must not end this process
            future.set_exception(RuntimeError(f"environment code raised {describe(error)}"))

    def work() -> None:
        result: Any = None
        with Boundary("environment", every=True, quiet=True) as caught:
            result = context.run(fn, *args, **kwargs)
        try:
            loop.call_soon_threadsafe(settle, result, caught.error)
        except RuntimeError:
            pass  # the loop was closed while the call hung: nobody waits for it any more

    threading.Thread(target=work, name="platoon-env-call", daemon=True).start()
    return await future
