"""The places of a run's groups: which are started, settled or taken, and whether one more fits the plan.

A place is taken when a group starts and free again when the step that trained it ends. Where a rule admits groups, a
rejected one frees its place at once, or, without datums, when a step takes its marker. Pure counting; the dispatcher
owns it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from platoon.draw.records import Key
from platoon.stats.schema import FATES, Fate


class Bounds(Protocol):
    """What limits the places."""

    @property
    def batch_size(self) -> int: ...
    @property
    def max_staleness(self) -> int | None: ...
    @property
    def cap(self) -> int | None: ...


class Places:
    """`steps_left` batches are to be trained. `asking`: a group is being chosen and has its place."""

    def __init__(self, bounds: Bounds, steps_left: int) -> None:
        self.steps_left = steps_left
        self.asking = False
        self._bounds = bounds
        self._running: set[Key] = set()
        self._settled: dict[Key, None] = {}
        self._dequeued: set[Key] = set()
        self._filled = 0
        self._counted = 0  # groups that the current step took, whatever became of them
        self._step = 0
        self._markers: dict[Key, tuple[int, bool]] = {}  # rejected and not taken: the step it was rejected in, held
        self._loose = 0  # markers of the current step that hold no place

    # -- what fits

    @property
    def pipeline(self) -> int:
        """Groups started and not taken by a step."""
        held = sum(held for _, held in self._markers.values()) if self._markers else 0
        return len(self._running) + len(self._settled) - len(self._dequeued) + held + self.asking

    @property
    def in_use(self) -> int:
        return self.pipeline + self._filled

    @property
    def planned(self) -> bool:
        """The remaining steps need no further group."""
        return self.in_use >= self.steps_left * self._bounds.batch_size

    @property
    def capped(self) -> bool:
        """Where the next groups could only go to this step: it has as many as it may count."""
        cap = self._bounds.cap
        if cap is None or not (self._bounds.max_staleness == 0 or self.steps_left == 1):
            return False
        return self._counted + self.pipeline + self._loose >= cap

    @property
    def counted(self) -> int:
        return self._counted

    @property
    def filled(self) -> int:
        """Places of the current step that have their group."""
        return self._filled

    @property
    def closed(self) -> bool:
        cap = self._bounds.cap
        return cap is not None and self._counted >= cap

    @property
    def running(self) -> int:
        return len(self._running)

    def settled_keys(self) -> tuple[Key, ...]:
        return tuple(self._settled)

    # -- events

    def started(self, key: Key) -> None:
        self._running.add(key)

    def stopped(self, key: Key) -> None:
        self._running.remove(key)

    def kept(self, key: Key) -> None:
        """Settled in an earlier start."""
        self._settled[key] = None

    def settled(self, key: Key) -> None:
        self._end(key)
        self._settled[key] = None

    def rejected(self, key: Key, *, held: bool) -> None:
        self._end(key)
        self._markers[key] = (self._step, held)
        self._loose += not held

    def _end(self, key: Key) -> None:
        if key not in self._running:
            raise ValueError(f"draw {key} settled, but it is not running")
        self._running.remove(key)

    def taken(self, key: Key, *, fills: bool) -> None:
        if (marker := self._markers.pop(key, None)) is not None:
            step, held = marker
            if step == self._step:
                self._counted += 1
                self._loose -= not held
            return
        if key not in self._settled or key in self._dequeued:
            raise ValueError(f"draw {key} was taken, but it is not waiting to be taken")
        self._dequeued.add(key)
        self._counted += 1
        self._filled += fills

    def commit(self, fates: Mapping[Key, Fate]) -> None:
        for key, fate in fates.items():
            if key not in self._dequeued:
                raise ValueError(f"draw {key} cannot be {fate}: no step took it")
            if fate not in FATES:
                raise ValueError(f"draw {key}: fate {fate!r} is not one of {', '.join(FATES)}")
        for key in fates:
            self._dequeued.remove(key)
            del self._settled[key]

    def step_started(self) -> None:
        if self._dequeued:
            raise RuntimeError(f"the step ended without a fate for draws {sorted(self._dequeued)[:5]}")
        self._filled = self._counted = self._loose = 0
        self.steps_left -= 1
        self._step += 1
