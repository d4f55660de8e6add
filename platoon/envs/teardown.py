"""Owned background work that closes environments.

A session's teardown outlives the caller that asked for it: a cancelled rollout must still close what it opened. A
rollout collects the teardowns started within it and waits for them before its permit is given back.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

_collector: ContextVar[Teardowns | None] = ContextVar("platoon_teardowns", default=None)
_running: set[asyncio.Task[Any]] = set()  # strong references: the loop itself keeps only weak ones


class Teardowns:
    """The teardowns one rollout started."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[Any]] = set()

    @contextmanager
    def collecting(self) -> Iterator[None]:
        """Teardowns started in the block (and in tasks created there) belong to this rollout."""
        token = _collector.set(self)
        try:
            yield
        finally:
            _collector.reset(token)

    def add(self, task: asyncio.Task[Any]) -> None:
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def wait(self, timeout_s: float) -> int:
        """Wait for them; returns how many still run after `timeout_s` seconds (they go on)."""
        if not self._tasks:
            return 0
        _, pending = await asyncio.wait(set(self._tasks), timeout=timeout_s)
        return len(pending)


def in_background(work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
    """Start teardown work as a task of its own that no caller's cancellation reaches."""
    task = asyncio.get_running_loop().create_task(work)
    _running.add(task)
    task.add_done_callback(_running.discard)
    collector = _collector.get()
    if collector is not None:
        collector.add(task)
    return task
