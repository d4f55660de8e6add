"""The permits of a run: how many rollouts may run at once, granted first come, first served.

A pure state machine: no clock, no tasks. Only the head of the queue may be partly granted, so a small group never
overtakes a large one. A reservation tells its owner of grants through `on_grant`, called at once.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable


class Reservation:
    """One group's claim on `size` permits.

    A rolling reservation is startable on its first permit, a whole one with all of them. `held` = granted and not
    given back.
    """

    def __init__(self, pool: PermitPool, size: int, rolling: bool) -> None:
        self.size = size
        self.rolling = rolling
        self.granted = 0
        self.returned = 0
        self.closed = False
        self.on_grant: Callable[[int], None] | None = None
        self._pool = pool

    @property
    def held(self) -> int:
        return self.granted - self.returned

    @property
    def startable(self) -> bool:
        return self.granted >= (1 if self.rolling else self.size)

    def give_back(self, count: int) -> None:
        """Return held permits to the pool. ValueError for more than are held."""
        if not 0 <= count <= self.held:
            raise ValueError(f"cannot give back {count} permits: {self.held} are held")
        self.returned += count
        self._pool.put(count)

    def shrink(self, size: int) -> None:
        """Ask for fewer permits after all; what is held beyond them returns. ValueError for more than asked for."""
        if not 1 <= size <= self.size:
            raise ValueError(f"a reservation of {self.size} permits cannot become one of {size}")
        excess = max(0, self.granted - size)
        self.size = size
        self.granted -= excess
        if self.granted == size:
            self._pool.leave(self)
        self._pool.put(excess)

    def close(self) -> None:
        """Leave the queue and return everything held. Harmless when repeated."""
        if self.closed:
            return
        self.closed = True
        self._pool.leave(self)
        held = self.held
        self.returned += held
        self._pool.put(held)


class PermitPool:
    """`capacity` permits. ValueError below 1. `on_change` hears of each change of the number in use."""

    def __init__(self, capacity: int, on_change: Callable[[int], None] = lambda change: None) -> None:
        if capacity < 1:
            raise ValueError(f"max_concurrent_rollouts is {capacity}; at least 1 is needed")
        self.capacity = capacity
        self.free = capacity
        self._on_change = on_change
        self._queue: deque[Reservation] = deque()

    @property
    def in_use(self) -> int:
        return self.capacity - self.free

    @property
    def queued(self) -> int:
        """Reservations that still wait for permits."""
        return len(self._queue)

    def reserve(self, size: int, *, rolling: bool) -> Reservation:
        """Claim permits; whatever is free is granted before this returns. ValueError when they can never be had."""
        if not 1 <= size <= self.capacity:
            raise ValueError(f"a group of {size} rollouts does not fit max_concurrent_rollouts: {self.capacity}")
        reservation = Reservation(self, size, rolling)
        self._queue.append(reservation)
        self._pump()
        return reservation

    def put(self, count: int) -> None:
        """Take permits back and serve the queue."""
        self.free += count
        if count:
            self._on_change(-count)
        self._pump()

    def leave(self, reservation: Reservation) -> None:
        """The reservation waits no longer; the caller then returns what it held, which serves the queue."""
        if reservation in self._queue:
            self._queue.remove(reservation)

    def _pump(self) -> None:
        while self._queue and self.free:
            head = self._queue[0]
            need = head.size - head.granted
            if need > self.free and not head.rolling:
                return
            count = min(need, self.free)
            head.granted += count
            self.free -= count
            self._on_change(count)
            if head.granted == head.size:
                self._queue.popleft()
            if head.on_grant is not None:
                head.on_grant(count)
