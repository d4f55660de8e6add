"""The audit log `tasks/events.jsonl`: draws, settles, fates and saves, in the order they happened.

Nobody reads it to decide anything. The first failure to write stops it with a warning; the run goes on.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any

from platoon.stats.jsonl import encode_row, ends_whole

log = logging.getLogger(__name__)


class EventLog:
    """Appends events to a file that stays open. Events wait in memory until `flush`."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file: IO[bytes] | None = None
        self._waiting: list[bytes] = []
        self._stopped = False

    @property
    def stopped(self) -> bool:
        return self._stopped

    def append(self, event: Mapping[str, Any]) -> None:
        """Add one event, `{"event": name, ...}`."""
        if not self._stopped:
            self._waiting.append(encode_row(event, compact=True))

    def flush(self) -> None:
        """Write and fsync what waits."""
        if self._stopped or not self._waiting:
            return
        try:
            if self._file is None:
                self._path.parent.mkdir(parents=True, exist_ok=True)
                whole = ends_whole(self._path)
                self._file = self._path.open("ab")
                if not whole:
                    self._file.write(b"\n")
            self._file.write(b"".join(self._waiting))
            self._file.flush()
            os.fsync(self._file.fileno())
            self._waiting.clear()
        except OSError as error:
            log.warning("%s cannot be written (%s): events are no longer recorded", self._path, error)
            self._stop()

    def close(self) -> None:
        """Flush and close; harmless when repeated."""
        self.flush()
        self._stop()

    def _stop(self) -> None:
        self._stopped = True
        self._waiting.clear()
        if self._file is not None:
            try:
                self._file.close()
            except OSError as error:
                log.warning("%s could not be closed: %s", self._path, error)
            self._file = None
