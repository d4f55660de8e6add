"""Asking a run to stop: one flag that signals, the STOP file and the caller share.

A stop is a request: the run finishes what must not be torn (a step whose update was applied, a save) and leaves with a
final save. It never decides how; that is the loop's.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

STOP_FILE = "STOP"
STOP_FILE_SECONDS = 2.0


class StopRequest:
    """Set once, from any thread; waiters on the run's loop wake up."""

    def __init__(self) -> None:
        self._event = asyncio.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._early = False
        self.reason: str | None = None

    def bind(self) -> None:
        """Tie the request to the running loop; a request made before this is kept."""
        self._loop = asyncio.get_running_loop()
        if self._early:
            self._event.set()

    def request(self, reason: str) -> None:
        """Ask for the stop; the first reason stands. Safe from any thread and from signal handlers' threads."""
        if self.reason is None:
            self.reason = reason
        self._early = True
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._event.set)

    @property
    def requested(self) -> bool:
        return self._early or self._event.is_set()

    @property
    def event(self) -> asyncio.Event:
        return self._event


async def watch_stop_file(run_dir: Path, stop: StopRequest) -> None:
    """Request the stop once a file named STOP appears in the run directory; the file is then removed."""
    path = run_dir / STOP_FILE
    while not stop.requested:
        if path.exists():
            path.unlink(missing_ok=True)
            stop.request("the STOP file in the run directory")
            return
        await asyncio.sleep(STOP_FILE_SECONDS)
