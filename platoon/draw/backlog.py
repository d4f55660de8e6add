"""What waits to start: draws whose label was full, and slots owed to entries that decide late, by age.

Queues of draws by label and of slots by entry; the item with the smallest ticket is the oldest. Which of them may start
is the dispatcher's to say.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TypeVar

from platoon.draw.records import Draw

KeyT = TypeVar("KeyT")
ItemT = TypeVar("ItemT")


@dataclass(frozen=True, slots=True)
class Token:
    """A position that went to an entry whose sampler has not decided. `fallback`: the run's sampler had failed."""

    entry: str
    position: int
    fallback: bool = False


class Backlog:
    """Empty queues are not kept, so that `labels` and `entries` are those with something waiting."""

    def __init__(self) -> None:
        self._draws: dict[str | None, deque[tuple[int, Draw]]] = {}
        self._tokens: dict[str, deque[tuple[int, Token]]] = {}
        self._ticket = 0

    def ticket(self) -> int:
        self._ticket += 1
        return self._ticket

    def add(self, item: Draw | Token) -> None:
        """Last in its queue."""
        if isinstance(item, Draw):
            self._draws.setdefault(item.label, deque()).append((self.ticket(), item))
        else:
            self._tokens.setdefault(item.entry, deque()).append((self.ticket(), item))

    def put_back(self, item: Draw | Token, ticket: int) -> None:
        """First in its queue, as old as it was."""
        if isinstance(item, Draw):
            self._draws.setdefault(item.label, deque()).appendleft((ticket, item))
        else:
            self._tokens.setdefault(item.entry, deque()).appendleft((ticket, item))

    def pop_oldest(
        self, draws_of: Callable[[str | None], bool], tokens_of: Callable[[str], bool]
    ) -> tuple[int, Draw | Token] | None:
        """The oldest item among the queues that may start, with its ticket."""
        best: tuple[int, str | None, bool] | None = None
        for label, draws in self._draws.items():
            if (best is None or draws[0][0] < best[0]) and draws_of(label):
                best = (draws[0][0], label, False)
        for entry, tokens in self._tokens.items():
            if (best is None or tokens[0][0] < best[0]) and tokens_of(entry):
                best = (tokens[0][0], entry, True)
        if best is None:
            return None
        _, name, is_token = best
        if is_token:
            return _pop(self._tokens, name or "")
        return _pop(self._draws, name)

    def waiting(self, label: str | None) -> int:
        return len(self._draws.get(label, ()))

    def owed(self, entry: str) -> int:
        return len(self._tokens.get(entry, ()))

    @property
    def labels(self) -> Iterator[str | None]:
        return iter(self._draws)

    @property
    def entries(self) -> Iterator[str]:
        return iter(self._tokens)

    def draws_by_label(self) -> dict[str | None, list[Draw]]:
        """Oldest queue first."""
        ranked = sorted(self._draws.items(), key=lambda item: item[1][0][0])
        return {label: [draw for _, draw in queue] for label, queue in ranked}

    def tokens_by_entry(self) -> dict[str, list[Token]]:
        """Oldest queue first."""
        ranked = sorted(self._tokens.items(), key=lambda item: item[1][0][0])
        return {entry: [token for _, token in queue] for entry, queue in ranked}


def _pop(queues: dict[KeyT, deque[tuple[int, ItemT]]], name: KeyT) -> tuple[int, ItemT]:
    queue = queues[name]
    found = queue.popleft()
    if not queue:
        del queues[name]
    return found
