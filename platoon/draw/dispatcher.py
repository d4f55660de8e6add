"""The dispatcher: which group starts next, and when.

A pure state machine: events in, decisions out. It has no clock, no tasks and does no I/O; `train/dispatch.py`
drives it. It promises that every position is used exactly once, that started and untrained groups never exceed the
horizon of (max_staleness + 1) batches nor what the remaining steps train, and that `state()` is enough to go on.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any, Literal

from platoon.draw.backlog import Backlog, Token
from platoon.draw.places import DispatchSettings, Places
from platoon.draw.pool import TaskPool
from platoon.draw.records import (
    Ask,
    Decision,
    Draw,
    Drawn,
    Fated,
    Key,
    Record,
    SlotSkipped,
    Start,
    Wait,
    WaitReason,
)
from platoon.draw.resume import FORMAT, RestoredDraws, SavedDraw, SavedState, plan_resume, read_state
from platoon.draw.samplers.hosted import Scene
from platoon.draw.samplers.sampling import Owed, Pick, Sampling
from platoon.stats.schema import Fate

__all__ = ["DispatchSettings", "Dispatcher"]


class Dispatcher:
    """State of one start's dispatch. `steps_left` batches are still to be trained, the current one included."""

    def __init__(
        self, pool: TaskPool, sampling: Sampling, settings: DispatchSettings, *, start: int, steps_left: int
    ) -> None:
        self.pool = pool
        self.settings = settings
        self.start = start
        self.version = 0
        self.step = 0  # of the run; samplers are told
        self.fingerprint: Mapping[str, Any] = {}
        self.next_position = 0
        self.sampling = sampling
        self.places = Places(settings, steps_left)
        self._next_seq = 0
        self._outstanding: dict[Key, Draw] = {}
        self._backlog = Backlog()
        self._asking: tuple[int, Token | None, int] | None = None  # ticket, the slot that is decided, permits
        self._tickets: dict[Key, int] = {}  # of groups that wait for permits: kept for a draw put back
        self._slots: dict[Key, str] = {}  # label slots in use
        self._active: dict[str, int] = {}
        self._labels = set(pool.labels)
        self._largest = max(settings.size_of(entry) for entry in pool.by_entry)

    @property
    def steps_left(self) -> int:
        return self.places.steps_left

    # -- decisions

    def choose(self) -> Decision:
        """Start the next draw, ask an adaptive sampler for one, or wait.

        A started draw holds its label's slot and its place at once; an asked one holds its place.
        """
        assert self._asking is None, "one decision at a time"
        records: list[Record] = []
        oldest = self._backlog.pop_oldest(self._draws_may_start, self._tokens_may_start)
        found: Draw | Token | Ask | None = None
        if oldest is not None:
            ticket, found = oldest
        elif self.room():
            found = self._ask_run() if self.sampling.adaptive else self._take_positions(records)
            ticket = self._backlog.ticket()
        if found is None:
            return Wait(self._wait_reason(), tuple(records))
        if isinstance(found, Draw):
            return self._begin(found, ticket, records)
        token = found if isinstance(found, Token) else None
        ask = found if isinstance(found, Ask) else Ask(self.settings.size_of(found.entry), found.entry, tuple(records))
        self._asking = (ticket, token, ask.size)
        self.places.asking = True
        return ask

    def decide(self) -> Start | Wait:
        """The permits asked for are there: let the sampler choose among what may start now.

        The statistics must be up to date. Waiting means that nothing may; what was held is given back.
        """
        assert self._asking is not None, "decide follows an Ask"
        ticket, token, size = self._asking
        closed = frozenset(label for label in self.settings.limits if not self._label_has_room(label))
        scene = Scene(self.version, self.step, closed, None if token else size)
        entry = token.entry if token is not None else None
        pick = self.sampling.ask(entry, scene, fallback=token is not None and token.fallback)
        if pick is None:
            self.withdraw()
            return Wait("sampler")
        self._asking = None
        self.places.asking = False
        if token is not None:
            position = token.position
        else:
            position, self.next_position = self.next_position, self.next_position + 1
        records: list[Record] = []
        return self._begin(self._number(pick, position, records), ticket, records)

    def withdraw(self) -> None:
        """Nothing was decided: a slot goes first in its entry's queue and what was held is given back."""
        assert self._asking is not None, "withdraw follows an Ask"
        ticket, token, _ = self._asking
        self._asking = None
        self.places.asking = False
        if token is not None:
            self._backlog.put_back(token, ticket)

    def _begin(self, draw: Draw, ticket: int, records: list[Record]) -> Start:
        self._tickets[draw.key] = ticket
        self.places.started(draw.key)
        if draw.label is not None and draw.label in self.settings.limits:
            self._slots[draw.key] = draw.label
            self._active[draw.label] = self._active.get(draw.label, 0) + 1
        return Start(draw, tuple(records))

    def room(self, label: str | None = None, *, waiting: bool = False) -> bool:
        """Whether the plan and the horizon admit one more group; for a waiting draw, name its label."""
        if self.places.planned or self.places.capped:
            return False
        horizon = self.settings.horizon
        return horizon is None or self.in_use + self._held(label if waiting else None) < horizon

    @property
    def in_use(self) -> int:
        """Groups started and not trained: running, settled, or taken by the current step."""
        return self.places.in_use

    def _held(self, label: str | None) -> int:
        """Places kept for the next group of full labels that have draws waiting, so that others cannot take them."""
        limits, ahead = self.settings.limits, self.settings.max_staleness
        if not limits or not ahead:
            return 0
        waiting = set(self._backlog.labels) | {self._only_label(entry) for entry in self._backlog.entries}
        run = sum(self._active.get(name, 0) for name in waiting if name is not None and name in limits)
        held = min(run, max(0, ahead * self.settings.batch_size - run))
        if label is not None and label in limits:
            held -= min(self._active.get(label, 0), held)
        return held

    def _only_label(self, entry: str) -> str | None:
        labels = self.pool.labels_of.get(entry, ())
        return labels[0] if len(labels) == 1 else None

    def _label_has_room(self, label: str | None) -> bool:
        limit = self.settings.limits.get(label) if label is not None else None
        return limit is None or self._active.get(label or "", 0) < limit

    def _some_label_has_room(self) -> bool:
        return not self.settings.limits or any(self._label_has_room(label) for label in self._labels)

    def _entry_can_start(self, entry: str | None) -> bool:
        limits = self.settings.limits
        return not limits or any(self._label_has_room(label) for label in self.pool.labels_of.get(entry, ()))

    def _draws_may_start(self, label: str | None) -> bool:
        return self._label_has_room(label) and self.room(label, waiting=True)

    def _tokens_may_start(self, entry: str) -> bool:
        label = self._only_label(entry)
        return self._entry_can_start(entry) and self.room(label, waiting=label is not None)

    def _largest_startable(self) -> int:
        startable = [entry for entry in self.pool.by_entry if self._entry_can_start(entry)]
        return max((self.settings.size_of(entry) for entry in startable), default=self._largest)

    def _ask_run(self) -> Ask | None:
        return Ask(self._largest_startable()) if self._some_label_has_room() else None

    def _take_positions(self, records: list[Record]) -> Draw | Token | None:
        """Use positions until one can start. Draws and slots that cannot wait, or are skipped when too many wait."""
        limit = self.settings.backlog_limit
        while self._some_label_has_room():
            position = self.next_position
            self.next_position += 1
            taken = self.sampling.take(position, Scene(self.version, self.step))
            item: Draw | Token
            if isinstance(taken, Owed):
                item = Token(taken.entry, position, taken.fallback)
                waiting = self._backlog.owed(item.entry)
                startable = waiting == 0 and self._entry_can_start(item.entry)
            else:
                item = self._number(taken, position, records)
                waiting, startable = self._backlog.waiting(item.label), self._label_has_room(item.label)
            if startable:
                return item
            if waiting < limit:
                self._backlog.add(item)
                if not self.room():
                    return None
            elif isinstance(item, Token):
                records.append(SlotSkipped(self.start, position, item.entry, "backlog"))
            else:
                del self._outstanding[item.key]
                records.append(Fated(item.key, "skipped", item.label))
        return None

    def _number(self, pick: Pick, position: int, records: list[Record], reissues: Key | None = None) -> Draw:
        draw = self._draw((self.start, self._next_seq), position, pick, reissues)
        self._next_seq += 1
        self._outstanding[draw.key] = draw
        records.append(Drawn(draw))
        return draw

    def _draw(self, key: Key, position: int, pick: Pick, reissues: Key | None = None) -> Draw:
        row = self.pool[pick.row_index]
        return Draw(
            start=key[0],
            seq=key[1],
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

    def _wait_reason(self) -> WaitReason:
        if self.places.planned:
            return "plan"
        if self.room():
            return "labels"
        return "plan" if self.settings.cap is not None and self.steps_left == 1 else "horizon"

    # -- events

    def put_back(self, key: Key) -> None:
        """A chosen draw did not start: it goes first in its label's queue and gives back what it held."""
        draw = self._outstanding[key]
        self.places.stopped(key)
        self.released(key)
        self._backlog.put_back(draw, self._tickets.pop(key))

    def released(self, key: Key) -> None:
        """The group ended or gave up its lease: its label's slot is free. Harmless when repeated."""
        label = self._slots.pop(key, None)
        if label is not None:
            self._active[label] -= 1

    def settled(self, key: Key) -> None:
        """The group's result is in. ValueError when the group is not running."""
        self.places.settled(key)
        self.released(key)
        self._tickets.pop(key, None)

    def rejected(self, key: Key, fate: Fate, rule: str, reason: str, *, held: bool) -> tuple[Fated, ...]:
        """A rule turned the group away: it has its fate now, and a step counts its marker when it takes it.

        `held`: it brought no datums, and keeps its place until then. ValueError when the group is not running.
        """
        self.places.rejected(key, held=held)
        self.released(key)
        self._tickets.pop(key, None)
        label = self._outstanding.pop(key).label
        return (Fated(key, fate, label, rule, reason),)

    def dequeued(self, key: Key, *, fills: bool = True) -> None:
        """The current step took the group, or the marker of a rejected one; does it fill one of the step's places?

        ValueError unless it is settled and not yet taken.
        """
        self.places.taken(key, fills=fills)

    def commit(self, fates: Mapping[Key, Fate]) -> tuple[Fated, ...]:
        """The step finished its updates: the taken groups have their fate. ValueError for any other key or fate."""
        self.places.commit(fates)
        for key in fates:
            del self._outstanding[key]
        return tuple(Fated(key, fate) for key, fate in fates.items())

    def step_started(self) -> None:
        """The next step begins: the horizon and the plan move on. RuntimeError while a taken group has no fate."""
        self.places.step_started()
        self.step += 1

    # -- what an observer may ask

    @property
    def running(self) -> int:
        """Groups started (or about to start) and not settled."""
        return self.places.running

    @property
    def counted(self) -> int:
        """Groups that the current step took, whatever became of them."""
        return self.places.counted

    @property
    def closed(self) -> bool:
        """The current step counted as many groups as it may: it trains what it has."""
        return self.places.closed

    def waiting(self) -> dict[str | None, int]:
        """Draws that wait to start, by label; slots of an entry with one label count, too."""
        found = {label: len(draws) for label, draws in self._backlog.draws_by_label().items()}
        for entry, tokens in self._backlog.tokens_by_entry().items():
            if (label := self._only_label(entry)) is not None:
                found[label] = found.get(label, 0) + len(tokens)
        return found

    def owed(self) -> dict[str, int]:
        """Slots that wait for their entry's sampler, by entry."""
        return {entry: len(tokens) for entry, tokens in self._backlog.tokens_by_entry().items()}

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
            f"{self.running} running, {len(self.settled_keys())} settled, {waiting} waiting, "
            f"{self.steps_left} steps left of {self.settings.batch_size} groups"
        )

    def settled_keys(self) -> tuple[Key, ...]:
        """Settled groups that no committed step trained, in settle order."""
        return self.places.settled_keys()

    # -- saving and going on

    def state(self) -> dict[str, Any]:
        """Everything a later start needs, as the JSON of `tasks/dispatch-*.json` (format 2).

        `kept` lists the settled groups; the writer of their file adds its name and hash.
        """
        outstanding = list(self._outstanding.values())
        kept = [list(key) for key in self.settled_keys()]
        tokens = self._backlog.tokens_by_entry()
        if self._asking is not None and (deciding := self._asking[1]) is not None:
            tokens[deciding.entry] = [deciding, *tokens.get(deciding.entry, [])]
        return {
            "format": FORMAT,
            "start": self.start,
            "sampler": self.sampling.name,
            "fingerprint": dict(self.fingerprint),
            "next_position": self.next_position,
            "outstanding": [[*draw.key, draw.task_id, draw.position] for draw in outstanding],
            "drawn": [[*draw.key, draw.row_index, draw.sampler] for draw in outstanding],
            "waiting": {
                label or "": [list(draw.key) for draw in draws]
                for label, draws in self._backlog.draws_by_label().items()
            },
            "tokens": {entry: [token.position for token in queue] for entry, queue in tokens.items()},
            "fallback_slots": [token.position for queue in tokens.values() for token in queue if token.fallback],
            "samplers": self.sampling.state(),
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
        warnings += self.sampling.load_state(saved.samplers, saved.next_position)
        self.next_position = saved.next_position
        records: list[Record] = []
        for old in plan.kept:
            self._outstanding[old.key] = self._draw(old.key, old.position, self._pick_of(old))
            self.places.kept(old.key)
        for old in (*plan.reissue, *plan.waiting):
            pick = self._pick_of(old, "reissue")
            self._backlog.add(self._number(pick, old.position, records, reissues=old.key))
        records.extend(Fated(old.key, "lost") for old in plan.lost)
        warnings += self._restore_tokens(saved, records)
        return RestoredDraws(tuple(records), tuple(old.key for old in plan.kept), tuple(warnings))

    def _restore_tokens(self, saved: SavedState, records: list[Record]) -> list[str]:
        """Slots wait again, by age; an entry that decides early now draws them; one without slots loses them."""
        warnings: list[str] = []
        slots: list[tuple[int, str]] = []
        for entry, positions in saved.tokens.items():
            sampler = self.sampling.entries.get(entry)
            if sampler is None:
                why: Literal["entry_left", "no_slots"] = "no_slots" if entry in self.pool.by_entry else "entry_left"
                records.extend(SlotSkipped(self.start, position, entry, why) for position in positions)
                warnings.append(f"{len(positions)} draws owed to environment {entry!r} are skipped: it has none now")
                continue
            if not sampler.adaptive:
                sampler.decisions = max(0, sampler.decisions - len(positions))
            slots += [(position, entry) for position in positions]
        for position, entry in sorted(slots):
            fallback = position in saved.fallback_slots
            pick = self.sampling.bind(entry, fallback)
            item = self._number(pick, position, records) if pick else Token(entry, position, fallback)
            self._backlog.add(item)
        return warnings

    def keep(self, key: Key, *, version: int, reason: str, score: float | None) -> Draw:
        """Complete a kept group's draw with what its saved record says."""
        draw = replace(self._outstanding[key], version=version, reason=reason, score=score)
        self._outstanding[key] = draw
        return draw

    def seek(self, position: int) -> None:
        """Go on at `position` without a saved state. RuntimeError when this dispatcher has already drawn."""
        if self._next_seq or self.next_position:
            raise RuntimeError("seek needs a dispatcher that has not drawn yet")
        self.sampling.seek(position)
        self.next_position = position

    def _pick_of(self, old: SavedDraw, reason: str = "order") -> Pick:
        index = self.pool.find(old.task_id, old.row_index)
        assert index is not None, "the plan loses tasks that left the pool"
        return Pick(index, old.sampler or self.sampling.name, reason)
