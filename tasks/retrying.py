"""Work that may be tried again, as a Prefect task with retries where a run is recorded and as a loop where it is not.

For steps that are safe to repeat, such as fetching and listing. The policy is the same either way; what is not named in
`on` is raised at once.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from tasks.recording import Attempted, current_recorder, current_run_id

T = TypeVar("T")
log = logging.getLogger("platoon.orchestration")


@dataclass(frozen=True)
class Retries:
    """`count` tries beside the first, `seconds` apart and twice as long each time, after exceptions of `on`."""

    on: tuple[type[Exception], ...]
    count: int = 2
    seconds: float = 1.0

    def wait(self, attempt: int) -> float:
        """Seconds after the failure of a try, the first being 0."""
        return float(self.seconds * 2**attempt)


async def retried(name: str, body: Callable[[], Awaitable[T]], retries: Retries) -> T:
    """The first result of `body`, or what its last try raised."""
    recorder = current_recorder()
    if recorder is None or recorder.breaker.is_open or current_run_id() is None:
        return await in_a_loop(name, body, retries)
    attempted: Attempted[T] = Attempted()
    with attempted:
        await as_task(name, attempted, body, retries)()
    return attempted.result() if attempted.ended else await in_a_loop(name, body, retries)


async def in_a_loop(name: str, body: Callable[[], Awaitable[T]], retries: Retries) -> T:
    for attempt in range(retries.count):
        try:
            return await body()
        except retries.on as error:
            log.warning("%s failed (%s); again in %.0f s", name, error, retries.wait(attempt))
            await asyncio.sleep(retries.wait(attempt))
    return await body()


def as_task(
    name: str, attempted: Attempted[T], body: Callable[[], Awaitable[T]], retries: Retries
) -> Callable[[], Awaitable[None]]:
    from prefect import task
    from prefect.cache_policies import NO_CACHE

    def again(task: Any, run: Any, state: Any) -> bool:
        return isinstance(attempted.error, retries.on)

    async def tracked() -> None:
        await attempted.run(body)

    return task(
        name=name,
        task_run_name=name,
        retries=retries.count,
        retry_delay_seconds=[retries.wait(attempt) for attempt in range(retries.count)],
        retry_condition_fn=again,
        cache_policy=NO_CACHE,
        persist_result=False,
    )(tracked)
