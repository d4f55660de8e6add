"""Order of one model's requests: by the number the client gave them, whatever connection was faster."""

from __future__ import annotations

from typing import Generic, TypeVar

T = TypeVar("T")


class SequenceGate(Generic[T]):
    """Holds items back until all with a lower number have passed. Numbers start at 1 and have no gaps.

    Pure: the caller decides how long an item may wait, and withdraws it then.
    """

    def __init__(self) -> None:
        self.next = 1
        self._waiting: dict[int, T] = {}

    def arrive(self, number: int, item: T) -> list[T]:
        """The items that may go now, in order. ValueError for a number that has passed or waits already."""
        if number < self.next or number in self._waiting:
            raise ValueError(f"request number {number} was seen before; the next one is {self.next}")
        self._waiting[number] = item
        ready = []
        while self.next in self._waiting:
            ready.append(self._waiting.pop(self.next))
            self.next += 1
        return ready

    def withdraw(self, number: int) -> T | None:
        """Take a waiting item back; its number stays open."""
        return self._waiting.pop(number, None)
