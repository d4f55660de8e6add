"""A discrete-event run of a dispatcher with given durations: to choose bounds before paying for them.

Nothing waits: time is a number. Groups take their permits as in a run, steps take groups in completion order, and an
update of fixed length follows. Ties end in the order in which they began.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from platoon.draw.dispatcher import Dispatcher
from platoon.draw.gauges import BlockedShares
from platoon.draw.permits import PermitPool, Reservation
from platoon.draw.records import Draw, Start, Wait, WaitReason


@dataclass(frozen=True)
class Simulation:
    """`durations` gives the seconds of each rollout of a draw's group; the group ends with its last rollout."""

    durations: Callable[[Draw], Sequence[float]]
    update_seconds: float
    permits: int
    rolling: bool = True


@dataclass(frozen=True)
class SimulatedStep:
    """One step: when its update was done, and what it trained, in completion order."""

    done_at: float
    draws: tuple[Draw, ...]


@dataclass(frozen=True)
class SimulatedRun:
    """`started` holds (time, draw) of each group; `blocked` the shares of time in which nothing could start."""

    steps: tuple[SimulatedStep, ...]
    started: tuple[tuple[float, Draw], ...]
    blocked: dict[WaitReason, float]


class _Group:
    def __init__(self, draw: Draw, reservation: Reservation, seconds: Sequence[float]) -> None:
        self.draw = draw
        self.reservation = reservation
        self.seconds = deque(seconds)  # of rollouts that have not begun
        self.left = len(self.seconds)  # rollouts that have not ended
        self.going = 0


class _Clockwork:
    def __init__(self, dispatcher: Dispatcher, run: Simulation) -> None:
        self.dispatcher, self.run = dispatcher, run
        self.now = 0.0
        self.pool = PermitPool(run.permits)
        self.blocked = BlockedShares(0.0)
        self.events: list[tuple[float, int, _Group | None]] = []  # a rollout's end, or None: the update's
        self.count = 0
        self.pending: Reservation | None = None
        self.decided: Start | None = None  # what the pending reservation is for; None: a sampler is to say
        self.started: list[tuple[float, Draw]] = []
        self.settled: deque[Draw] = deque()
        self.taken: list[Draw] = []
        self.steps: list[SimulatedStep] = []
        self.updating = False

    def at(self, seconds: float, what: _Group | None) -> None:
        self.count += 1
        heapq.heappush(self.events, (self.now + seconds, self.count, what))

    def launch(self, group: _Group) -> None:
        """Start as many of the group's rollouts as it holds unused permits."""
        while group.seconds and group.going < group.reservation.held:
            group.going += 1
            self.at(group.seconds.popleft(), group)

    def dispatch(self) -> None:
        while True:
            if self.pending is not None:
                if not self.pending.startable:
                    return
                decision = self.decided or self.dispatcher.decide()
                if isinstance(decision, Wait):
                    self.pending.close()
                    self.pending = None
                    self.blocked.wait(decision.reason, self.now)
                    return
                self.begin(decision.draw, self.pending)
                self.pending = None
            chosen = self.dispatcher.choose()
            if isinstance(chosen, Wait):
                self.blocked.wait(chosen.reason, self.now)
                return
            self.decided = chosen if isinstance(chosen, Start) else None
            size = chosen.draw.group_size if isinstance(chosen, Start) else chosen.size
            self.pending = self.pool.reserve(size, rolling=self.run.rolling)
            self.blocked.wait("permits", self.now)

    def begin(self, draw: Draw, reservation: Reservation) -> None:
        reservation.shrink(draw.group_size)
        group = _Group(draw, reservation, self.run.durations(draw))
        self.started.append((self.now, draw))
        self.launch(group)
        reservation.on_grant = lambda count: self.launch(group)

    def take(self) -> None:
        while self.settled and not self.updating:
            draw = self.settled.popleft()
            self.dispatcher.dequeued(draw.key)
            self.taken.append(draw)
            if len(self.taken) == self.dispatcher.settings.batch_size:
                self.updating = True
                self.at(self.run.update_seconds, None)
                self.steps.append(SimulatedStep(self.now + self.run.update_seconds, tuple(self.taken)))

    def event(self) -> None:
        self.now, _, group = heapq.heappop(self.events)
        if group is None:
            self.dispatcher.commit({draw.key: "consumed" for draw in self.taken})
            self.dispatcher.version += 1
            self.dispatcher.step_started()
            self.taken, self.updating = [], False
            return
        group.left -= 1
        group.going -= 1
        if group.left == 0:
            group.reservation.close()
            self.dispatcher.settled(group.draw.key)
            self.settled.append(group.draw)
        elif self.run.rolling:
            group.reservation.give_back(1)


def simulate(dispatcher: Dispatcher, run: Simulation) -> SimulatedRun:
    """Run the dispatcher's remaining steps to their end and say what happened when.

    RuntimeError when it comes to a standstill. The dispatcher is used up.
    """
    clockwork = _Clockwork(dispatcher, run)
    while dispatcher.steps_left > 0:
        clockwork.take()
        clockwork.dispatch()
        if not clockwork.events:
            raise RuntimeError(f"nothing runs and nothing can start: {dispatcher.describe()}")
        clockwork.event()
    return SimulatedRun(tuple(clockwork.steps), tuple(clockwork.started), dict(clockwork.blocked.window(clockwork.now)))
