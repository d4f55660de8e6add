"""How many of platoon's log lines reach the flow run's logs in Prefect.

Prefect queues every line in memory and sends them in the background. A burst is let through, then a steady few a
second; what is left out is counted and said. While the API is away nothing is queued. The console and files are not
concerned.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

BURST = 200.0
LINES_A_SECOND = 5.0


class BoundedRate(logging.Filter):
    """A token bucket; warnings and errors may use the last quarter of it, which other lines may not."""

    def __init__(
        self, handler: logging.Handler, away: Callable[[], bool], clock: Callable[[], float] = time.monotonic
    ) -> None:
        super().__init__()
        self._handler = handler
        self._away = away
        self._clock = clock
        self._tokens = BURST
        self._at = clock()
        self._left_out = 0
        self._lock = threading.Lock()

    def filter(self, record: logging.LogRecord) -> bool:
        if self._away():
            return False
        with self._lock:
            now = self._clock()
            self._tokens = min(BURST, self._tokens + (now - self._at) * LINES_A_SECOND)
            self._at = now
            needed = 1.0 if record.levelno >= logging.WARNING else 1.0 + BURST / 4
            if self._tokens < needed:
                self._left_out += 1
                return False
            self._tokens -= 1.0
            left_out, self._left_out = self._left_out, 0
        if left_out:
            said = {**record.__dict__, "msg": f"{left_out} log lines were left out here", "args": None}
            self._handler.emit(logging.makeLogRecord(said))
        return True


def bound_rate(handler: logging.Handler, away: Callable[[], bool]) -> None:
    """Let the handler pass only so many lines; a bound it has from an earlier run is replaced."""
    for old in [one for one in handler.filters if isinstance(one, BoundedRate)]:
        handler.removeFilter(old)
    handler.addFilter(BoundedRate(handler, away))
