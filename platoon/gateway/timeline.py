"""When a rollout called its model: per call the gap before it, and the seconds of render, sample and parse.

One timeline a rollout, shared by its agent tree. Times are `perf_counter` seconds.
"""

from __future__ import annotations

import time
from array import array
from collections.abc import Callable


class RolloutTimeline:
    """`on_first_call` is called once, with the seconds since the start, when the first call arrives."""

    def __init__(
        self, on_first_call: Callable[[float], None] | None = None, clock: Callable[[], float] = time.perf_counter
    ) -> None:
        self._clock = clock
        self._on_first_call = on_first_call
        self.started_at = clock()
        self.first_call_at: float | None = None
        self._last_end = self.started_at
        # Four numbers a call (gap, render, sample, parse) in one flat array: long rollouts keep a record a call.
        self._seconds = array("d")

    def call_started(self) -> float:
        """Seconds since the end of the previous recorded call, or since the start."""
        now = self._clock()
        if self.first_call_at is None:
            self.first_call_at = now
            if self._on_first_call is not None:
                self._on_first_call(now - self.started_at)
        return max(0.0, now - self._last_end)

    def call_ended(self, *, gap: float, render: float, sample: float, parse: float) -> None:
        self._last_end = self._clock()
        self._seconds.extend((gap, render, sample, parse))

    @property
    def first_model_call_seconds(self) -> float:
        """-1 when there was no call."""
        return -1.0 if self.first_call_at is None else self.first_call_at - self.started_at

    @property
    def calls(self) -> list[tuple[float, float, float, float]]:
        """(gap, render, sample, parse) of each recorded call, in order."""
        s = self._seconds
        return [(s[i], s[i + 1], s[i + 2], s[i + 3]) for i in range(0, len(s), 4)]

    def summary(self, most: int = 512) -> dict[str, object]:
        """At most `most` calls, evenly strided, and the time to the first call."""
        calls = self.calls
        stride = max(1, -(-len(calls) // most))
        columns = zip(*calls[::stride], strict=True) if calls else ((), (), (), ())
        names = ("gap_seconds", "render_seconds", "sample_seconds", "parse_seconds")
        return {
            "first_model_call_seconds": self.first_model_call_seconds,
            "calls": len(calls),
            **{name: list(column) for name, column in zip(names, columns, strict=True)},
        }
