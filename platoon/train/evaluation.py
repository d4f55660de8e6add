"""Evaluation beside training: the held-out tasks, played by the policy of the step at which they fell due.

A due evaluation waits its turn and is never dropped. Each one samples the weights of its own step, however far training
went meanwhile. It trains nothing and its failures are counted, never scored.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from platoon.credit import GroupOutput
from platoon.extensions.boundary import Boundary
from platoon.rollout.lease import FreeLease
from platoon.stats.jsonl import append_row, read_jsonl
from platoon.train.environments import Environments
from platoon.train.group import GroupRolloutWorkflow
from platoon.train.service import TinkerSampler

log = logging.getLogger("platoon.eval")
FILE = "evaluations.jsonl"


@dataclass(frozen=True)
class Due:
    """An evaluation that fell due: at this step, of this policy."""

    step: int
    version: int
    sampler: TinkerSampler


@dataclass(frozen=True)
class Evaluated:
    """One evaluation that ended. `outputs` hold None for a group that failed."""

    due: Due
    outputs: tuple[GroupOutput | None, ...]
    tasks: int
    seconds: float


def evaluated_steps(run_dir: Path) -> set[int]:
    """Steps whose evaluation an earlier start completed."""
    return {row["step"] for row in read_jsonl(run_dir / FILE).rows if isinstance(row.get("step"), int)}


@dataclass(frozen=True)
class EvaluationPlan:
    """When to evaluate. `interval` in steps, 0 for never."""

    interval: int
    at_start: bool
    budget: int

    def due(self, step: int) -> bool:
        return bool(self.interval) and step % self.interval == 0 and (step != 0 or self.at_start)


# makes the workflow that plays with a policy: a gateway of its own, pinned to it
OpenWorkflow = Callable[[Due], AbstractAsyncContextManager[GroupRolloutWorkflow]]


class EvaluationLoop:
    """Runs due evaluations one after another.

    `notice` queues a due step; `idle` waits until all queued ones ended; `report` gets each result (metrics, row).
    """

    def __init__(
        self,
        plan: EvaluationPlan,
        environments: Environments,
        open_workflow: OpenWorkflow,
        report: Callable[[Evaluated], Mapping[str, Any]],
        run_dir: Path,
    ) -> None:
        self._plan = plan
        self._environments = environments
        self._open = open_workflow
        self._report = report
        self._run_dir = run_dir
        self._done = evaluated_steps(run_dir)
        self._queue: deque[Due] = deque()
        self._changed = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()

    def notice(self, due: Due) -> bool:
        """Queue the evaluation of this step if the plan has one and no start completed it. True when queued."""
        if not self._plan.due(due.step) or due.step in self._done:
            return False
        self._done.add(due.step)
        self._queue.append(due)
        self._idle.clear()
        self._changed.set()
        return True

    def sampler_paths(self) -> set[str]:
        """Saved weights that queued evaluations sample."""
        return {due.sampler.path for due in self._queue if due.sampler.path is not None}

    async def idle(self) -> None:
        """Wait until every queued evaluation ended."""
        await self._idle.wait()

    async def run(self) -> None:
        """The loop: ends by cancellation only."""
        while True:
            while self._queue:
                await self._evaluate(self._queue[0])
                self._queue.popleft()
            self._idle.set()
            self._changed.clear()
            await self._changed.wait()

    async def _evaluate(self, due: Due) -> None:
        began = time.monotonic()
        rows = self._environments.pool.rows
        permits = asyncio.Semaphore(max(1, self._plan.budget // self._smallest_group()))
        async with self._open(due) as workflow:

            async def play(index: int) -> GroupOutput | None:
                row = rows[index]
                size = self._environments.entry_of(row.entry).settings.group_size
                async with permits:
                    with Boundary("rollout"):
                        scope = f"eval/{due.step}/{index}"
                        return (await workflow.play(row, FreeLease(), seed_scope=scope, group_size=size)).output
                return None

            async with asyncio.TaskGroup() as tasks:
                running = [tasks.create_task(play(index)) for index in range(len(rows))]
            outputs = tuple(task.result() for task in running)
        evaluated = Evaluated(due, outputs, len(rows), time.monotonic() - began)
        summary = self._report(evaluated)
        row = {
            "step": due.step,
            **summary,
            "tasks": evaluated.tasks,
            "seconds": round(evaluated.seconds, 1),
            "time": datetime.now(UTC).isoformat(timespec="seconds"),
        }
        append_row(self._run_dir / FILE, row)

    def _smallest_group(self) -> int:
        return min(played.settings.group_size for played in self._environments.played.values())
