"""One process at a time in a run directory.

The kernel holds the lock (`flock` on `.lock`) and frees it however the process ends, also by kill -9, across PID
namespaces. `owner.json` names the owner; on a shared file system, where another machine's lock may not be seen, an
owner with another boot id counts as live while its heartbeat is fresh.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from platoon.config.files import write_text
from platoon.config.problems import ConfigError

BEAT_SECONDS = 20.0
FRESH_SECONDS = 120.0
NO_PLACE = frozenset({errno.ENOENT, errno.ENOTDIR, errno.EEXIST, errno.EISDIR, errno.EACCES, errno.EPERM, errno.EROFS})


class RunLock:
    """Context manager that holds a run directory. Entering raises ConfigError, naming the owner, when it is held, and
    when the directory can be neither made nor written.

    `clock` gives seconds since the epoch; `boot_id` identifies the running kernel; `key` is the config key that names
    another directory.
    """

    def __init__(
        self,
        run_dir: Path,
        *,
        clock: Callable[[], float] = time.time,
        boot_id: str | None = None,
        key: str = "stats.trial_name",
    ) -> None:
        self.run_dir = run_dir
        self._key = key
        self._place = "log_path" if key == "stats.trial_name" else key
        self._clock = clock
        self._boot_id = boot_id if boot_id is not None else current_boot_id()
        self._descriptor: int | None = None
        self._stop = threading.Event()
        self._beats: threading.Thread | None = None

    @property
    def owner_path(self) -> Path:
        return self.run_dir / "owner.json"

    def __enter__(self) -> Self:
        try:
            self.run_dir.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(self.run_dir / ".lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as error:
            if error.errno not in NO_PLACE:  # a full disk is no fault of the configuration
                raise
            raise ConfigError(
                f"{self.run_dir} cannot hold the results: {error.strerror} ({error.filename}); "
                f"use {self._place} to name a directory that can be written"
            ) from error
        try:
            self._take(descriptor)
            self.beat()
        except BaseException:
            os.close(descriptor)
            raise
        self._descriptor = descriptor
        self._beats = threading.Thread(target=self._keep_beating, name="run-lock", daemon=True)
        self._beats.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        if self._beats is not None:
            self._beats.join()
        self.owner_path.unlink(missing_ok=True)
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def beat(self) -> None:
        """Write `owner.json` with a fresh heartbeat."""
        owner = {
            "host": socket.gethostname(),
            "boot_id": self._boot_id,
            "pid": os.getpid(),
            "start_time": process_start(os.getpid()),
            "heartbeat": self._clock(),
        }
        write_text(json.dumps(owner, indent=2) + "\n", self.owner_path)

    def _keep_beating(self) -> None:
        while not self._stop.wait(BEAT_SECONDS):
            try:
                self.beat()
            except OSError:
                # A full or absent file system is the run's to report; the kernel still holds the lock.
                continue

    def _take(self, descriptor: int) -> None:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = read_owner(self.run_dir) or {}
            who = f"process {holder.get('pid', 'unknown')} on host {holder.get('host', 'unknown')}"
            raise ConfigError(f"{self.run_dir} is in use by {who}; stop it, or use another {self._key}") from None
        owner = read_owner(self.run_dir)
        if owner is not None and owner.get("boot_id") != self._boot_id:
            age = abs(self._clock() - float(owner.get("heartbeat") or 0.0))
            if age < FRESH_SECONDS:
                raise ConfigError(
                    f"{self.run_dir} is in use by process {owner.get('pid')} on host {owner.get('host')}, which wrote "
                    f"its heartbeat {age:.0f} s ago; stop it, or try again in {FRESH_SECONDS - age:.0f} s if it is gone"
                )


def read_owner(run_dir: Path) -> dict[str, Any] | None:
    """What `owner.json` says, or None when there is none or it cannot be read."""
    try:
        owner = json.loads((run_dir / "owner.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return owner if isinstance(owner, dict) else None


def current_boot_id() -> str:
    """Identifies the running kernel; the host's name where Linux does not say."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return socket.gethostname()


def process_start(pid: int) -> int | None:
    """When a process started, in clock ticks since boot; None where /proc does not say."""
    try:
        return int(Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[19])
    except (OSError, ValueError, IndexError):
        return None
