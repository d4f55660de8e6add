"""A driver whose groups end when the test says so."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from platoon.draw.dispatcher import Dispatcher, DispatchSettings
from platoon.draw.pool import PoolRow, TaskPool
from platoon.draw.records import Draw, Key
from platoon.draw.samplers.sampling import build_sampling
from platoon.draw.samplers.settings import EntrySampling, SamplingSettings
from platoon.rollout.lease import RolloutLease
from platoon.stats.schema import Fate
from platoon.train.dispatch import DispatchDriver, DispatchHooks, DriverOptions, Settled

Output = list[str]


class Hand:
    """A clock moved by hand."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class Gates:
    """`run_group` of a test: each group opens its blocks, then waits at its gate for a result or an exception."""

    def __init__(self) -> None:
        self.open: dict[int, asyncio.Future[Output | None]] = {}
        self.began: list[int] = []
        self.cancelled: list[int] = []
        self.rollouts = self.most_rollouts = 0
        self.waits: dict[int, list[float]] = {}

    async def __call__(self, draw: Draw, row: PoolRow, lease: RolloutLease) -> Output | None:
        assert row.task_id == draw.task_id
        gate: asyncio.Future[Output | None] = asyncio.get_running_loop().create_future()
        self.open[draw.position] = gate
        self.began.append(draw.position)
        members = [asyncio.create_task(self._rollout(draw, lease, index, gate)) for index in range(draw.group_size)]
        try:
            await asyncio.gather(*members)
            return await gate
        except asyncio.CancelledError:
            if not gate.done() or gate.cancelled():
                self.cancelled.append(draw.position)
            raise
        finally:
            for member in members:
                member.cancel()
            await asyncio.gather(*members, return_exceptions=True)

    async def _rollout(self, draw: Draw, lease: RolloutLease, index: int, gate: asyncio.Future[Output | None]) -> None:
        async with lease.rollout(index) as waited:
            self.waits.setdefault(draw.position, []).append(waited)
            self.rollouts += 1
            self.most_rollouts = max(self.most_rollouts, self.rollouts)
            try:
                await asyncio.wait([gate])
            finally:
                self.rollouts -= 1

    def end(self, position: int, output: Output | None = None) -> None:
        self.open.pop(position).set_result([f"p{position}"] if output is None else output)

    def end_with_nothing(self, position: int) -> None:
        self.open.pop(position).set_result(None)

    def fail(self, position: int, failure: BaseException) -> None:
        gate = self.open.pop(position)
        if isinstance(failure, asyncio.CancelledError):
            gate.cancel()
        else:
            gate.set_exception(failure)


@dataclass
class Journal:
    """What the hooks heard, in order."""

    draws: list[Draw]
    lines: list[str]
    events: list[dict[str, Any]]

    def hooks(self) -> DispatchHooks[Output]:
        def on_draw(draw: Draw) -> None:
            self.draws.append(draw)
            self.lines.append(f"draw {draw.position}")

        def on_settle(settled: Settled[Output]) -> None:
            self.lines.append(f"settle {settled.draw.position}")

        def on_fate(key: Key, fate: Fate) -> None:
            self.lines.append(f"{fate} {key[0]}-{key[1]}")

        return DispatchHooks(on_draw, on_settle, on_fate, self.events.append)


def journal() -> Journal:
    return Journal([], [], [])


@dataclass(frozen=True)
class Run:
    """A small run: `tasks` rows drawn in listing order."""

    tasks: int = 40
    batch_size: int = 2
    group_size: int = 1
    ahead: int | None = 1
    steps: int = 5
    limits: Mapping[str, int] | None = None
    labels: str = "x"

    def dispatcher(self, start: int = 1, done: int = 0) -> Dispatcher:
        rows = [PoolRow(f"t{index}", None, self.labels[index % len(self.labels)]) for index in range(self.tasks)]
        pool = TaskPool(rows)
        run = SamplingSettings(self.batch_size, (EntrySampling("default"),), listing_ordered=True)
        bounds = DispatchSettings(self.batch_size, self.group_size, self.ahead, limits=self.limits or {})
        return Dispatcher(pool, build_sampling(run, pool), bounds, start=start, steps_left=self.steps - done)


@asynccontextmanager
async def driving(driver: DispatchDriver[Output]) -> AsyncIterator[None]:
    """Run the driver for the length of the block, then close it."""
    async with asyncio.TaskGroup() as tasks:
        driver.start(tasks)
        await turns()
        try:
            yield
        finally:
            driver.close()


def driver_of(
    dispatcher: Dispatcher,
    gates: Callable[[Draw, PoolRow, RolloutLease], Any],
    *,
    hooks: DispatchHooks[Output] | None = None,
    options: DriverOptions | None = None,
) -> DispatchDriver[Output]:
    return DispatchDriver(dispatcher, gates, options or DriverOptions(100), hooks)


async def turns(count: int = 25) -> None:
    """Let the loop run what is ready, without letting time pass."""
    for _ in range(count):
        await asyncio.sleep(0)


async def take(driver: DispatchDriver[Output], count: int) -> list[int]:
    """Positions of the next groups."""
    return [(await driver.take()).draw.position for _ in range(count)]


def through_json(state: Mapping[str, Any]) -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads(json.dumps(state, allow_nan=False))
    return loaded


def fates(keys: Iterable[Key], fate: Fate = "consumed") -> dict[Key, Fate]:
    return dict.fromkeys(keys, fate)
