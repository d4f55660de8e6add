"""The places of a run's groups: which are started, settled or taken, and whether one more fits the plan.

A place is taken when a group starts and free again when the step that trained it ends. Where a rule admits groups, a
rejected one frees its place at once, or, without datums, when a step takes its marker. Pure counting; the dispatcher
owns it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from platoon.draw.records import Key
from platoon.stats.schema import FATES, Fate


@dataclass(frozen=True)
class DispatchSettings:
    """Bounds of a run's dispatch.

    `max_staleness` None means no horizon. `group_sizes` holds entries whose size differs from `group_size`. `limits`
    caps the running groups of a label; draws of a full label wait, at most `backlog` of them (None: 4 batches).
    `cap`: most groups a step counts when a rule admits groups; None when every group is admitted.
    """

    batch_size: int
    group_size: int
    max_staleness: int | None = None
    group_sizes: Mapping[str, int] = field(default_factory=dict)
    limits: Mapping[str, int] = field(default_factory=dict)
    backlog: int | None = None
    cap: int | None = None

    def size_of(self, entry: str | None) -> int:
        """Rollouts of one group of this entry."""
        return self.group_sizes.get(entry, self.group_size) if entry is not None else self.group_size

    @property
    def backlog_limit(self) -> int:
        return 4 * self.batch_size if self.backlog is None else self.backlog

    @property
    def horizon(self) -> int | None:
        """Most groups that may be started and not yet trained; None without a bound."""
        return None if self.max_staleness is None else (self.max_staleness + 1) * self.batch_size


class Places:
    """`steps_left` batches are to be trained. `asking`: a group is being chosen and has its place."""

    def __init__(self, bounds: DispatchSettings, steps_left: int) -> None:
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
