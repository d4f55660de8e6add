"""The start limit: how many rollouts may be starting at once, from their permit to their first model call.

First come, first served; one limit for training and the evaluations beside it. A slot is given back once: at the first
model call, at the rollout's end, at its cancellation, or by a timer. It holds no permits and starts nothing.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter, deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Literal

import numpy as np

from platoon.draw.gauges import Gauge

log = logging.getLogger("platoon.train")
Cause = Literal["first_call", "end", "timer", "cancelled"]
Phase = Literal["train", "eval"]
CAUSES: tuple[Cause, ...] = ("first_call", "end", "timer", "cancelled")
TIMER_EXTRA_SECONDS = 300.0
_ENOUGH = 32  # releases before their causes say something


class StartSlot:
    """One rollout's slot. `waited`: seconds, exactly 0.0 when it was free."""

    def __init__(self, limit: StartLimit | None, waited: float = 0.0, phase: Phase = "train") -> None:
        self.waited = waited
        self._limit = limit
        self._phase = phase

    def first_call(self) -> None:
        """The rollout called its model: others may start."""
        self.release("first_call")

    def release(self, cause: Cause) -> None:
        """Give the slot back. Harmless when repeated."""
        limit, self._limit = self._limit, None
        if limit is not None:
            limit.give_back(cause, self._phase)


class StartWindow:
    """What one phase's rollouts did at the limit since the last export."""

    def __init__(self, now: float) -> None:
        self.starting, self.waiting = Gauge(now), Gauge(now)
        self.waits: list[float] = []
        self.releases: Counter[Cause] = Counter()
        self._asked = False

    def export(self, now: float) -> dict[str, float]:
        """Under `start_limit/`; nothing before a slot was asked for. The next window begins."""
        starting, waiting = self.starting.window(now)[0], self.waiting.window(now)[0]
        self._asked = self._asked or bool(self.waits or waiting)
        if not self._asked:
            return {}
        found = {"start_limit/starting_mean": starting, "start_limit/waiting_mean": waiting}
        if self.waits:
            waits = np.array(self.waits)
            found["start_limit/wait_seconds_p50"] = float(np.percentile(waits, 50))
            found["start_limit/wait_seconds_p90"] = float(np.percentile(waits, 90))
            found["start_limit/wait_seconds_max"] = float(waits.max())
        found |= {f"start_limit/releases/{cause}": float(self.releases[cause]) for cause in CAUSES}
        self.waits.clear()
        self.releases.clear()
        return found


class StartLimit:
    """`slots` rollouts may be starting at once; a slot returns by itself after `timer_seconds`."""

    def __init__(self, slots: int, timer_seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        if slots < 1:
            raise ValueError(f"max_starting_rollouts is {slots}; at least 1 is needed")
        self.slots = slots
        self._timer_seconds = timer_seconds
        self._clock = clock
        self._free = slots
        self._waiters: deque[asyncio.Future[None]] = deque()
        self._windows: dict[Phase, StartWindow] = {"train": StartWindow(clock()), "eval": StartWindow(clock())}
        self._all: Counter[Cause] = Counter()
        self._warned: set[str] = set()

    @asynccontextmanager
    async def slot(self, phase: Phase = "train") -> AsyncIterator[StartSlot]:
        """Hold a slot until the rollout's first model call, at most for the block."""
        slot = StartSlot(self, await self._acquire(self._windows[phase]), phase)
        timer = asyncio.get_running_loop().call_later(self._timer_seconds, slot.release, "timer")
        try:
            yield slot
        except asyncio.CancelledError:
            slot.release("cancelled")
            raise
        finally:
            timer.cancel()
            slot.release("end")

    async def _acquire(self, window: StartWindow) -> float:
        waited = 0.0
        if self._free and not self._waiters:
            self._free -= 1
        else:
            since = self._clock()
            waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiters.append(waiter)
            window.waiting.add(1, since)
            try:
                await waiter
            except asyncio.CancelledError:
                if waiter.done() and not waiter.cancelled():
                    self._pass_on()  # granted in the instant of the cancellation
                else:
                    self._waiters.remove(waiter)
                raise
            finally:
                window.waiting.add(-1, self._clock())
            waited = self._clock() - since
        window.starting.add(1, self._clock())
        window.waits.append(waited)
        return waited

    def give_back(self, cause: Cause, phase: Phase = "train") -> None:
        """A slot is free again."""
        window = self._windows[phase]
        window.starting.add(-1, self._clock())
        window.releases[cause] += 1
        self._all[cause] += 1
        self._pass_on()
        self._warn(cause)

    def _pass_on(self) -> None:
        while self._waiters:
            waiter = self._waiters.popleft()
            if not waiter.done():
                waiter.set_result(None)
                return
        self._free += 1

    def _warn(self, cause: Cause) -> None:
        if cause == "timer" and "timer" not in self._warned:
            self._warned.add("timer")
            log.warning("a rollout made no model call for %.0f s; its start slot went on", self._timer_seconds)
        counted = self._all.total() - self._all["cancelled"]
        late = self._all["end"] + self._all["timer"]
        if counted >= _ENOUGH and late > counted / 2 and "late" not in self._warned:
            self._warned.add("late")
            log.warning(
                "%d of %d rollouts ended or timed out without a model call: max_starting_rollouts held them up whole",
                late,
                counted,
            )

    def window(self, phase: Phase = "train") -> dict[str, float]:
        """What a phase's rollouts did since the last call, under `start_limit/`; nothing before a slot was asked."""
        return self._windows[phase].export(self._clock())


@asynccontextmanager
async def no_limit() -> AsyncIterator[StartSlot]:
    """A slot that never waits."""
    yield StartSlot(None)
