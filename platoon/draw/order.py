"""The static orders of draws: pure functions of a decision index.

Each order maps decision d = 0, 1, 2, … to a row or an entry, endlessly, by passes over its pool. The same index
gives the same answer in any process, so a resume needs only a position. Nothing here counts decisions.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt

TIE = 1e-12  # credits this close to the largest count as equal


class RowOrder(Protocol):
    """Decision index to a place in the order's own list of rows."""

    def row(self, decision: int) -> int: ...


class RunUniform:
    """Every row once per pass; pass p is numpy's permutation seeded with 42 + 101·p."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._pass = -1
        self._rows: npt.NDArray[np.int64] = np.empty(0, np.int64)

    def row(self, decision: int) -> int:
        turn, offset = divmod(decision, self._size)
        if turn != self._pass:
            self._pass = turn
            self._rows = np.random.default_rng(42 + 101 * turn).permutation(self._size)
        return int(self._rows[offset])


class EntryUniform:
    """An entry's rows once per pass; pass p is Python's shuffle seeded with seed + entry·10007 + p·101."""

    def __init__(self, size: int, seed: int, entry_index: int) -> None:
        self._size = size
        self._base = seed + entry_index * 10007
        self._pass = -1
        self._rows: list[int] = []

    def row(self, decision: int) -> int:
        turn, offset = divmod(decision, self._size)
        if turn != self._pass:
            self._pass = turn
            self._rows = list(range(self._size))
            random.Random(self._base + turn * 101).shuffle(self._rows)
        return self._rows[offset]


class ListingOrder:
    """The listing, again and again, cut to whole batches. ValueError for fewer rows than a batch."""

    def __init__(self, size: int, batch_size: int) -> None:
        self._cut = size // batch_size * batch_size
        if self._cut == 0:
            raise ValueError(f"train.batch_size: {batch_size} is more than the {size} listed training tasks; lower it")

    def row(self, decision: int) -> int:
        return decision % self._cut


class FairOrder:
    """Slots handed to entries by weight: each slot goes to the entry that is owed most.

    `shares` are the weights divided by their sum. Asking for an earlier slot replays from 0.
    """

    def __init__(self, weights: Sequence[float]) -> None:
        total = sum(weights)
        self.shares = [weight / total for weight in weights]
        self._restart()

    def _restart(self) -> None:
        self._credits = [0.0] * len(self.shares)
        self._cursor = 0
        self._next = 0
        self._last = -1

    def entry(self, slot: int) -> int:
        """Index of the entry that slot number `slot` goes to."""
        if slot < self._next - 1:
            self._restart()
        while self._next <= slot:
            self._last = self._step()
            self._next += 1
        return self._last

    def _step(self) -> int:
        credits = self._credits
        for index, share in enumerate(self.shares):
            credits[index] += share
        best = max(credits)
        count = len(credits)
        for offset in range(count):
            chosen = (self._cursor + offset) % count
            if abs(credits[chosen] - best) <= TIE:
                break
        credits[chosen] -= 1.0
        self._cursor = (chosen + 1) % count
        return chosen


def decision_key(seed: int, name: str, decision: int) -> int:
    """The 128-bit number that seeds decision `decision` of the sampler with this qualified name."""
    return int.from_bytes(hashlib.sha256(f"{seed}:{name}:{decision}".encode()).digest()[:16], "big")
