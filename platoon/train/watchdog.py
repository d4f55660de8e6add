"""The watchdog: a run without progress is ended, so that a supervisor can start it again.

Fed by progress only (a group settled, the service answered, a step ended), never by a timer. It runs on a thread of
its own, because what it guards against may be a blocked event loop.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
import time
import traceback
from collections.abc import Callable

log = logging.getLogger("platoon.watchdog")


class Watchdog:
    """Ends the process with `exit_code` when `heartbeat` was not called for `timeout_seconds`."""

    def __init__(
        self,
        timeout_seconds: float = 1800.0,
        exit_code: int = 2,
        on_timeout_callback: Callable[[], None] | None = None,
        *,
        clock: Callable[[], float] = time.monotonic,
        leave: Callable[[int], None] = os._exit,
    ) -> None:
        self.timeout_seconds = timeout_seconds
        self.exit_code = exit_code
        self._on_timeout = on_timeout_callback
        self._clock = clock
        self._leave = leave
        self._last = clock()
        self._warned = False
        self._watched = threading.get_ident()
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None

    def heartbeat(self) -> None:
        """Note progress."""
        self._last = self._clock()
        self._warned = False

    def start(self) -> None:
        """Begin to watch; the time counts from here."""
        self.heartbeat()
        self._watched = threading.get_ident()
        self._stopped.clear()
        self._thread = threading.Thread(target=self._watch, name="platoon-watchdog", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Stop watching. Idempotent."""
        self._stopped.set()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()
        self._thread = None

    def check(self) -> bool:
        """One look: True when the time was up and the process was told to leave."""
        idle = self._clock() - self._last
        if idle > self.timeout_seconds:
            limit = self.timeout_seconds
            log.error(
                "no progress for %.0f s (watchdog.timeout_seconds %.0f): leaving%s", idle, limit, self._standing()
            )
            if self._on_timeout is not None:
                self._on_timeout()
            self._leave(self.exit_code)
            return True
        if idle > 0.75 * self.timeout_seconds and not self._warned:
            self._warned = True
            log.warning("no progress for %.0f s; the watchdog ends the run at %.0f s", idle, self.timeout_seconds)
        return False

    def _standing(self) -> str:
        """Where the thread that started the watch is: its innermost frames name what blocks it."""
        frame = sys._current_frames().get(self._watched)
        return "" if frame is None else "; it is at\n" + "".join(traceback.format_stack(frame)[-6:]).rstrip()

    def _watch(self) -> None:
        while not self._stopped.wait(min(60.0, self.timeout_seconds / 10)):
            if self.check():
                return
