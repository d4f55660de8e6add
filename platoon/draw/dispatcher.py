"""The dispatcher: which group starts next, and when.

A pure state machine: events in, decisions out. It has no clock, no tasks and does no I/O; `train/dispatch.py`
drives it. It promises that every position is used exactly once, that started and untrained groups never exceed the
horizon of (max_staleness + 1) batches nor what the remaining steps train, and that `state()` is enough to go on.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from platoon.draw.pool import TaskPool
from platoon.draw.records import Decision, Draw, Drawn, Fated, Key, Record, Start, Wait, WaitReason
from platoon.draw.resume import FORMAT, RestoredDraws, SavedDraw, plan_resume, read_state
from platoon.draw.samplers.static import Pick, Sampling
from platoon.stats.schema import FATES, Fate


@dataclass(frozen=True)
class DispatchSettings:
    """Bounds of a run's dispatch.

    `max_staleness` None means no horizon. `group_sizes` holds entries whose size differs from `group_size`. `limits`
    caps the running groups of a label; draws of a full label wait, at most `backlog` of them (None: 4 batches).
    """

    batch_size: int
    group_size: int
    max_staleness: int | None = None
    group_sizes: Mapping[str, int] = field(default_factory=dict)
    limits: Mapping[str, int] = field(default_factory=dict)
    backlog: int | None = None

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


class Dispatcher:
    """State of one start's dispatch. `steps_left` batches are still to be trained, the current one included."""

    def __init__(
        self, pool: TaskPool, sampling: Sampling, settings: DispatchSettings, *, start: int, steps_left: int
    ) -> None:
        self.pool = pool
        self.settings = settings
        self.start = start
        self.steps_left = steps_left
        self.version = 0
        self.fingerprint: Mapping[str, Any] = {}
        self.next_position = 0
        self._sampling = sampling
        self._next_seq = 0
        self._ticket = 0
        self._outstanding: dict[Key, Draw] = {}
        self._waiting: dict[str | None, deque[tuple[int, Draw]]] = {}
        self._tickets: dict[Key, int] = {}  # of groups that wait for permits: kept for a draw put back
        self._running: dict[Key, Draw] = {}
        self._slots: dict[Key, str] = {}  # label slots in use
        self._active: dict[str, int] = {}
        self._settled: dict[Key, None] = {}
        self._dequeued: set[Key] = set()
        self._committed = 0  # of the current step: they use its places until it ends
        self._labels = set(pool.labels)

    # -- decisions

    def choose(self) -> Decision:
        """Start the next draw, or wait. A started draw holds its label's slot and its place at once."""
        records: list[Record] = []
        draw = self._pop_waiting()
        if draw is None and self.room():
            draw = self._take_positions(records)
        if draw is None:
            return Wait(self._wait_reason(), tuple(records))
        self._running[draw.key] = draw
        if draw.label is not None and draw.label in self.settings.limits:
            self._slots[draw.key] = draw.label
            self._active[draw.label] = self._active.get(draw.label, 0) + 1
        return Start(draw, tuple(records))

    def room(self, label: str | None = None, *, waiting: bool = False) -> bool:
        """Whether the plan and the horizon admit one more group; for a waiting draw, name its label."""
        in_use = self.in_use
        if in_use >= self.steps_left * self.settings.batch_size:
            return False
        horizon = self.settings.horizon
        return horizon is None or in_use + self._held(label if waiting else None) < horizon

    @property
    def in_use(self) -> int:
        """Groups started and not trained: running, settled, or taken by the current step."""
        return len(self._running) + len(self._settled) + self._committed

    def _held(self, label: str | None) -> int:
        """Places kept for the next group of full labels that have draws waiting, so that others cannot take them."""
        limits, ahead = self.settings.limits, self.settings.max_staleness
        if not limits or not ahead:
            return 0
        run = sum(self._active.get(name, 0) for name in self._waiting if name is not None and name in limits)
        held = min(run, max(0, ahead * self.settings.batch_size - run))
        if label is not None and label in limits:
            held -= min(self._active.get(label, 0), held)
        return held

    def _label_has_room(self, label: str | None) -> bool:
        limit = self.settings.limits.get(label) if label is not None else None
        return limit is None or self._active.get(label or "", 0) < limit

    def _some_label_has_room(self) -> bool:
        return not self.settings.limits or any(self._label_has_room(label) for label in self._labels)

    def _pop_waiting(self) -> Draw | None:
        best: str | None = None
        ticket = -1
        for label, queue in self._waiting.items():
            if (ticket < 0 or queue[0][0] < ticket) and self._label_has_room(label) and self.room(label, waiting=True):
                best, ticket = label, queue[0][0]
        if ticket < 0:
            return None
        queue = self._waiting[best]
        ticket, draw = queue.popleft()
        if not queue:
            del self._waiting[best]
        self._tickets[draw.key] = ticket
        return draw

    def _take_positions(self, records: list[Record]) -> Draw | None:
        """Draw positions until one can start. Draws of full labels wait, or are skipped when too many wait."""
        while self._some_label_has_room():
            position = self.next_position
            self.next_position += 1
            draw = self._number(self._sampling.take(position), position, records)
            if self._label_has_room(draw.label):
                self._tickets[draw.key] = self._take_ticket()
                return draw
            if len(self._waiting.get(draw.label, ())) < self.settings.backlog_limit:
                self._enqueue(draw)
                if not self.room():
                    return None
            else:
                del self._outstanding[draw.key]
                records.append(Fated(draw.key, "skipped", draw.label))
        return None

    def _number(self, pick: Pick, position: int, records: list[Record], reissues: Key | None = None) -> Draw:
        row = self.pool[pick.row_index]
        draw = Draw(
            start=self.start,
            seq=self._next_seq,
            position=position,
            task_id=row.task_id,
            row_index=pick.row_index,
            entry=row.entry,
            label=row.label,
            group_size=self.settings.size_of(row.entry),
            sampler=pick.sampler,
            reason=pick.reason,
            score=pick.score,
            version=self.version,
            reissues=reissues,
        )
        self._next_seq += 1
        self._outstanding[draw.key] = draw
        records.append(Drawn(draw))
        return draw

    def _take_ticket(self) -> int:
        self._ticket += 1
        return self._ticket

    def _enqueue(self, draw: Draw) -> None:
        self._waiting.setdefault(draw.label, deque()).append((self._take_ticket(), draw))

    def _wait_reason(self) -> WaitReason:
        if self.in_use >= self.steps_left * self.settings.batch_size:
            return "plan"
        return "labels" if self.room() else "horizon"

    # -- events

    def put_back(self, key: Key) -> None:
        """A chosen draw did not start: it goes first in its label's queue and gives back what it held."""
        draw = self._running.pop(key)
        self.released(key)
        self._waiting.setdefault(draw.label, deque()).appendleft((self._tickets.pop(key), draw))

    def released(self, key: Key) -> None:
        """The group ended or gave up its lease: its label's slot is free. Harmless when repeated."""
        label = self._slots.pop(key, None)
        if label is not None:
            self._active[label] -= 1

    def settled(self, key: Key) -> None:
        """The group's result is in. ValueError when the group is not running."""
        if key not in self._running:
            raise ValueError(f"draw {key} settled, but it is not running")
        self.released(key)
        del self._running[key]
        self._tickets.pop(key, None)
        self._settled[key] = None

    def dequeued(self, key: Key) -> None:
        """The current step took the group. ValueError unless it is settled and not yet taken."""
        if key not in self._settled or key in self._dequeued:
            raise ValueError(f"draw {key} was taken, but it is not waiting to be taken")
        self._dequeued.add(key)

    def commit(self, fates: Mapping[Key, Fate]) -> tuple[Fated, ...]:
        """The step finished its updates: the taken groups have their fate. ValueError for any other key or fate."""
        for key, fate in fates.items():
            if key not in self._dequeued:
                raise ValueError(f"draw {key} cannot be {fate}: no step took it")
            if fate not in FATES:
                raise ValueError(f"draw {key}: fate {fate!r} is not one of {', '.join(FATES)}")
        for key in fates:
            self._dequeued.remove(key)
            del self._settled[key]
            del self._outstanding[key]
        self._committed += len(fates)
        return tuple(Fated(key, fate) for key, fate in fates.items())

    def step_started(self) -> None:
        """The next step begins: the horizon and the plan move on. RuntimeError while a taken group has no fate."""
        if self._dequeued:
            raise RuntimeError(f"the step ended without a fate for draws {sorted(self._dequeued)[:5]}")
        self._committed = 0
        self.steps_left -= 1

    # -- what an observer may ask

    @property
    def running(self) -> int:
        """Groups started (or about to start) and not settled."""
        return len(self._running)

    def waiting(self) -> dict[str | None, int]:
        """Draws that wait to start, by label."""
        return {label: len(queue) for label, queue in self._waiting.items()}

    def active(self) -> dict[str, int]:
        """Running groups of labels with a limit."""
        return dict(self._active)

    def draw(self, key: Key) -> Draw:
        """An outstanding draw. KeyError when it has its fate or was never made."""
        return self._outstanding[key]

    def describe(self) -> str:
        """One line on what is in use, for an error message."""
        waiting = sum(self.waiting().values())
        return (
            f"{len(self._running)} running, {len(self._settled)} settled, {waiting} waiting, "
            f"{self.steps_left} steps left of {self.settings.batch_size} groups"
        )

    def settled_keys(self) -> tuple[Key, ...]:
        """Settled groups that no committed step trained, in settle order."""
        return tuple(self._settled)

    # -- saving and going on

    def state(self) -> dict[str, Any]:
        """Everything a later start needs, as the JSON of `tasks/dispatch-*.json` (format 2).

        `kept` lists the settled groups; the writer of their file adds its name and hash.
        """
        outstanding = list(self._outstanding.values())
        waiting = sorted(self._waiting.items(), key=lambda item: item[1][0][0])
        kept = [list(key) for key in self._settled]
        return {
            "format": FORMAT,
            "start": self.start,
            "sampler": self._sampling.name,
            "fingerprint": dict(self.fingerprint),
            "next_position": self.next_position,
            "outstanding": [[*draw.key, draw.task_id, draw.position] for draw in outstanding],
            "drawn": [[*draw.key, draw.row_index, draw.sampler] for draw in outstanding],
            "waiting": {label or "": [list(draw.key) for _, draw in queue] for label, queue in waiting},
            "tokens": {},
            "fallback_slots": [],
            "samplers": self._sampling.state(),
            "kept": {"groups": kept} if kept else None,
        }

    def load_state(self, state: Mapping[str, Any], kept: Iterable[Key] = ()) -> RestoredDraws:
        """Go on from an earlier start's state. `kept` names the settled groups that could be read back, in order.

        Kept groups stay under their old keys. Every other outstanding draw is drawn again at its position, before
        anything new. Tasks that left the pool are lost. ValueError for a state that does not read, with nothing
        changed; RuntimeError when this dispatcher has already drawn.
        """
        if self._next_seq or self.next_position:
            raise RuntimeError("load_state needs a dispatcher that has not drawn yet")
        saved, warnings = read_state(state)
        if saved.start >= self.start:
            raise ValueError(f"the state is of start {saved.start}; this is start {self.start} and must be later")
        plan = plan_resume(saved, self.pool, kept)
        samplers = saved.samplers if self._sampling.name == saved.sampler else None
        warnings += self._sampling.load_state(samplers, saved.next_position)
        self.next_position = saved.next_position
        records: list[Record] = []
        for old in plan.kept:
            self._outstanding[old.key] = self._kept_draw(old, self.pool.find(old.task_id, old.row_index))
            self._settled[old.key] = None
        for old in (*plan.reissue, *plan.waiting):
            index = self.pool.find(old.task_id, old.row_index)
            assert index is not None, "the plan only reissues tasks of the pool"
            pick = Pick(index, old.sampler or self._sampling.name, "reissue")
            self._enqueue(self._number(pick, old.position, records, reissues=old.key))
        records.extend(Fated(old.key, "lost") for old in plan.lost)
        return RestoredDraws(tuple(records), tuple(old.key for old in plan.kept), tuple(warnings))

    def keep(self, key: Key, *, version: int, reason: str, score: float | None) -> Draw:
        """Complete a kept group's draw with what its saved record says."""
        draw = replace(self._outstanding[key], version=version, reason=reason, score=score)
        self._outstanding[key] = draw
        return draw

    def seek(self, position: int) -> None:
        """Go on at `position` without a saved state. RuntimeError when this dispatcher has already drawn."""
        if self._next_seq or self.next_position:
            raise RuntimeError("seek needs a dispatcher that has not drawn yet")
        self._sampling.seek(position)
        self.next_position = position

    def _kept_draw(self, old: SavedDraw, index: int | None) -> Draw:
        assert index is not None, "the plan only keeps tasks of the pool"
        row = self.pool[index]
        return Draw(
            start=old.key[0],
            seq=old.key[1],
            position=old.position,
            task_id=old.task_id,
            row_index=index,
            entry=row.entry,
            label=row.label,
            group_size=self.settings.size_of(row.entry),
            sampler=old.sampler or self._sampling.name,
            version=self.version,
        )
