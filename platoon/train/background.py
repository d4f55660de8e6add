"""The run's owner of background work: every task has a name, an owner and an end.

Promise: a task that dies is told to whoever waits on the run, never only logged; closing cancels what is left and
waits for it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from types import TracebackType
from typing import Any, TypeVar

T = TypeVar("T")


@asynccontextmanager
async def unless(watch: Coroutine[Any, Any, None] | None) -> AsyncIterator[None]:
    """Run the block in this task. When `watch` fails meanwhile, the block is cancelled and the failure raised."""
    if watch is None:
        yield
        return
    try:
        async with asyncio.TaskGroup() as tasks:
            watching = tasks.create_task(watch)
            yield
            watching.cancel()
    except BaseExceptionGroup as failures:
        raise failures.exceptions[0] from None


class Background:
    """Tasks that live as long as this context.

    `failure` is done as soon as one of them raised; `race(awaitable)` waits for either.
    """

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[Any]] = set()
        self._failure: asyncio.Future[None] | None = None

    async def __aenter__(self) -> Background:
        self._failure = asyncio.get_running_loop().create_future()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._failure is not None and self._failure.done() and not self._failure.cancelled():
            self._failure.exception()  # read, so that asyncio does not report it as never retrieved

    def start(self, name: str, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Run `work` as a task of this owner."""
        task = asyncio.get_running_loop().create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if task.cancelled() or self._failure is None or self._failure.done():
            return
        error = task.exception()
        if error is not None:
            self._failure.set_exception(error)

    def check(self) -> None:
        """Raise the first failure, if there was one."""
        if self._failure is not None and self._failure.done():
            self._failure.result()

    async def until(self, task: asyncio.Future[T]) -> T:
        """The result of `task`, or the failure of a background task that comes first (`task` is then cancelled).

        When the caller is cancelled, `task` goes on: it is the caller's.
        """
        assert self._failure is not None, "enter the owner first"
        either: list[asyncio.Future[Any]] = [task, self._failure]
        await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            self._failure.result()
        return task.result()

    async def race(self, work: Coroutine[Any, Any, T]) -> T:
        """As `until`, for work that ends with this call."""
        mine = asyncio.ensure_future(work)
        try:
            return await self.until(mine)
        finally:
            if not mine.done():
                mine.cancel()
                await asyncio.gather(mine, return_exceptions=True)
