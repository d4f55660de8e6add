"""Playing what an evaluation owes, a number of rollouts at a time.

A rollout leaves files when it is settled, all of them; one that is cancelled in flight leaves nothing. An exception of
foreign code becomes an errored record with its text.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from platoon.eval.kept import keep, read
from platoon.eval.output import ROLLOUTS
from platoon.eval.policy import Policy
from platoon.eval.records import Judging, Kept
from platoon.eval.tasks import EvalTask
from platoon.extensions.boundary import Boundary
from platoon.rollout.episode import Episode, EpisodeRequest, new_rollout_id, run_episode

T = TypeVar("T")
REPORTS_OF_PROGRESS = 20
log = logging.getLogger("platoon.eval")


@dataclass(frozen=True)
class Owed:
    """One rollout to play, and the directory of its files."""

    task: EvalTask
    index: int
    directory: Path


@dataclass(frozen=True)
class Resuming:
    """What of a directory counts as done: any valid rollout, and errored ones unless they are made again."""

    judging: Judging
    retry_errored: bool


def still_owed(
    output: Path, tasks: Sequence[EvalTask], names: Mapping[str, str], count: int, resuming: Resuming
) -> list[Owed]:
    """The rollouts that the directory does not hold yet: task by task, `count` of each."""
    owed = []
    for task in tasks:
        for index in range(count):
            directory = output / ROLLOUTS / names[task.task_id] / f"rollout_{index}"
            found = read(directory, resuming.judging)
            if found is None or (resuming.retry_errored and not found.record.valid):
                owed.append(Owed(task, index, directory))
    return owed


async def play_all(
    owed: Sequence[Owed], policy: Policy, workers: int, provenance: Mapping[str, Any], judging: Judging
) -> None:
    """Play and keep every owed rollout, in order, at most `workers` at once."""
    waiting, done, errored = deque(owed), 0, 0
    stride = max(1, len(owed) // REPORTS_OF_PROGRESS)

    async def work() -> None:
        nonlocal done, errored
        while waiting:
            one = waiting.popleft()
            played = await play(one, policy)
            kept = Kept(one.task.task_id, one.index)
            record = await settled(asyncio.to_thread(keep, one.directory, kept, played, provenance, judging))
            done, errored = done + 1, errored + (not record.valid)
            if done % stride == 0 or done == len(owed):
                log.info("%d of %d rollouts done, %d of them errored", done, len(owed), errored)

    try:
        async with asyncio.TaskGroup() as group:
            for _ in range(min(workers, len(owed))):
                group.create_task(work())
    except BaseExceptionGroup as found:
        raise found.exceptions[0] from None


async def play(owed: Owed, policy: Policy) -> Episode | str:
    """One rollout; the exception's text when it raised."""
    request = EpisodeRequest(
        task_id=owed.task.raw_id,
        route=owed.task.route,
        config=owed.task.settings,
        rollout_id=new_rollout_id(owed.task.task_id),
        seed_scope=f"{owed.task.task_id}/{owed.index}",
    )
    with Boundary("rollout") as caught:
        return await run_episode(request, policy.gateway, policy.server)
    return caught.text


async def settled(work: Awaitable[T]) -> T:
    """Await `work`; a cancellation waits for its end before it goes on."""
    task = asyncio.ensure_future(work)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait([task])
        if not task.cancelled() and task.exception() is not None:
            log.warning("a rollout was not kept: %s", task.exception())
        raise
