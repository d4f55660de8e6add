"""A breaker in front of the Prefect API: a dead API costs a run one probe, not one timeout a call.

Closed while `/health` answers (asked at most once a second). A failure opens it for 15 s; then one probe decides.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable

PROBE_SECONDS = 1.0
OPEN_SECONDS = 15.0


class Breaker:
    """Says whether a call to the API may be tried now. `probe` never raises; `clock` is monotonic seconds."""

    def __init__(
        self,
        probe: Callable[[], Awaitable[bool]],
        clock: Callable[[], float] = time.monotonic,
        open_seconds: float = OPEN_SECONDS,
    ) -> None:
        self._probe = probe
        self._clock = clock
        self._open_seconds = open_seconds
        self._healthy_at: float | None = None
        self._open_until: float | None = None

    @property
    def is_open(self) -> bool:
        """True from a failure until a probe succeeds, also when the next probe is already due."""
        return self._open_until is not None

    async def allow(self) -> bool:
        now = self._clock()
        if self._open_until is not None and now < self._open_until:
            return False
        if self._open_until is None and self._healthy_at is not None and now - self._healthy_at < PROBE_SECONDS:
            return True
        if not await self._probe():
            self.trip()
            return False
        self._healthy_at = self._clock()
        self._open_until = None
        return True

    def trip(self) -> None:
        """Note a failed call: the API is left alone for `open_seconds`."""
        self._open_until = self._clock() + self._open_seconds
