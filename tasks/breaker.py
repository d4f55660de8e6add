"""A breaker in front of the Prefect API: a dead API costs a run one probe, not one timeout a call.

Closed while `/health` answers (asked at most once a second). A failure opens it for 15 s; then a probe decides, and
what the outage lost is set right before it closes. An API that fails again within a minute is left alone twice as long.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable

PROBE_SECONDS = 1.0
OPEN_SECONDS = 15.0
AGAIN_SECONDS = 60.0
LONGEST_SECONDS = 120.0


async def _nothing_to_recover() -> bool:
    return True


class Breaker:
    """Says whether a call to the API may be tried now. `clock` is monotonic seconds.

    `probe` says whether the API answers, `recover` whether what was lost is set right; neither raises.
    """

    def __init__(
        self,
        probe: Callable[[], Awaitable[bool]],
        clock: Callable[[], float] = time.monotonic,
        open_seconds: float = OPEN_SECONDS,
        recover: Callable[[], Awaitable[bool]] = _nothing_to_recover,
    ) -> None:
        self.open_seconds = open_seconds
        self._probe = probe
        self._recover = recover
        self._clock = clock
        self._healthy_at: float | None = None
        self._open_until: float | None = None
        self._closed_at: float | None = None
        self._times = 1

    @property
    def is_open(self) -> bool:
        """True from a failure until a probe succeeds, also when the next probe is already due."""
        return self._open_until is not None

    @property
    def due(self) -> float:
        """Seconds until the next probe of an open one."""
        return max(0.0, (self._open_until or 0.0) - self._clock())

    async def allow(self, *, at_once: bool = False) -> bool:
        """`at_once`: probe an open one even before it is due."""
        now = self._clock()
        if self._open_until is not None and now < self._open_until and not at_once:
            return False
        if self._open_until is None and self._healthy_at is not None and now - self._healthy_at < PROBE_SECONDS:
            return True
        if not await self._probe() or (self.is_open and not await self._recover()):
            self.trip()
            return False
        self._healthy_at = self._clock()
        if self._open_until is not None:
            self._open_until, self._closed_at = None, self._healthy_at
        return True

    def trip(self) -> None:
        """Note a failed call: the API is left alone for a while."""
        now = self._clock()
        if self._open_until is None:
            again = self._closed_at is not None and now - self._closed_at < AGAIN_SECONDS
            self._times = 2 * self._times if again else 1
        self._open_until = now + min(self.open_seconds * self._times, max(LONGEST_SECONDS, self.open_seconds))
