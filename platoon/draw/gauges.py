"""Counts over time: time-weighted means and maxima, and the shares of time a dispatcher was blocked.

Pure: the caller passes the time, in seconds of any one clock.
"""

from __future__ import annotations

from platoon.draw.records import WAIT_REASONS, WaitReason


class Gauge:
    """A count that goes up and down; `window` gives its time-weighted mean and its maximum since the last window."""

    def __init__(self, now: float) -> None:
        self.value = 0
        self._since = self._changed = now
        self._area = 0.0
        self._max = 0

    def add(self, change: int, now: float) -> None:
        self._area += self.value * (now - self._changed)
        self._changed = now
        self.value += change
        self._max = max(self._max, self.value)

    def window(self, now: float) -> tuple[float, int, float]:
        """(mean, maximum, seconds) of the window that ends now; the next one begins."""
        self.add(0, now)
        seconds = now - self._since
        mean = self._area / seconds if seconds > 0 else float(self.value)
        highest = self._max
        self._since, self._area, self._max = now, 0.0, self.value
        return mean, highest, seconds


class BlockedShares:
    """Share of the time in which nothing could start, by reason; a wait in progress counts up to now."""

    def __init__(self, now: float) -> None:
        self._since = self._mark = now
        self._reason: WaitReason | None = None
        self._seconds: dict[WaitReason, float] = dict.fromkeys(WAIT_REASONS, 0.0)

    def wait(self, reason: WaitReason, now: float) -> None:
        self.go(now)
        self._reason = reason

    def go(self, now: float) -> None:
        if self._reason is not None:
            self._seconds[self._reason] += now - self._mark
        self._reason, self._mark = None, now

    def window(self, now: float) -> dict[WaitReason, float]:
        """All five shares of the window that ends now, each at most 1; the next one begins."""
        reason = self._reason
        self.go(now)
        self._reason = reason
        seconds = now - self._since
        shares = {name: min(1.0, spent / seconds) if seconds > 0 else 0.0 for name, spent in self._seconds.items()}
        self._since = now
        self._seconds = dict.fromkeys(WAIT_REASONS, 0.0)
        return shares
