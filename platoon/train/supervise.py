"""Starting a run again when it dies: the loop around `platoon train` when `watchdog.max_restarts` is above 0.

Each start is a process of its own that goes on from the newest checkpoint. A start that ends well, on request or for a
bad configuration is the end; so are three starts in a row that got nowhere. `python -m platoon.train.supervise
RUN/config.resolved.yaml` makes one such start.
"""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType

from platoon.train.checkpoints import read_rows

log = logging.getLogger("platoon.supervise")
FINAL_CODES = (0, 78, 130, 143)
FRUITLESS_STARTS = 3
STOP, FORCE = signal.SIGUSR2, signal.SIGUSR1


@dataclass
class Restarts:
    """Decides whether a run is started again. `max_restarts`: starts beside the first one."""

    max_restarts: int
    starts: int = 0
    fruitless: int = 0

    def again(self, code: int, step_before: int, step_after: int) -> bool:
        """Whether to start again after a start that ended with `code` and moved the resume step so."""
        self.starts += 1
        if code in FINAL_CODES:
            return False
        self.fruitless = self.fruitless + 1 if step_after <= step_before else 0
        return self.fruitless < FRUITLESS_STARTS and self.starts <= self.max_restarts


def resume_step(run_dir: Path) -> int:
    """The step that a start in this directory goes on from; 0 when it begins."""
    rows = [row for row in read_rows(run_dir) if row.get("state_path")]
    step = rows[-1].get("batch", 0) if rows else 0
    return step if isinstance(step, int) else 0


@dataclass
class Supervisor:
    """Runs `command` until it is done. `reap` stops what a dead start left behind, before the next one."""

    command: Sequence[str]
    run_dir: Path
    restarts: Restarts
    environment: Mapping[str, str] = field(default_factory=dict)
    reap: Callable[[Path], None] = lambda run_dir: None
    _signals: list[int] = field(default_factory=list, init=False)
    _process: subprocess.Popen[bytes] | None = field(default=None, init=False)

    def run(self) -> int:
        """The exit code of the last start, 128 + n for one that signal n killed. Call it in the main thread."""
        with _handling({signal.SIGINT: self._forward, signal.SIGTERM: self._forward}):
            while not self._signals:
                before = resume_step(self.run_dir)
                code = self._start()
                if self._signals:
                    return 128 + self._signals[0] if code in (128 + STOP, 128 + FORCE) else code
                after = resume_step(self.run_dir)
                if not self.restarts.again(code, before, after):
                    if code not in FINAL_CODES:
                        log.error("the run ended with %d at step %d; not started again", code, after)
                    return code
                log.warning(
                    "the run ended with %d at step %d; start %d of %d follows",
                    code,
                    after,
                    self.restarts.starts + 1,
                    self.restarts.max_restarts + 1,
                )
                self.reap(self.run_dir)
            return 128 + self._signals[0]

    def _start(self) -> int:
        # The signals that ask the start to end stay blocked until it has handlers for them.
        environment = {**os.environ, **self.environment}
        self._process = subprocess.Popen(self.command, env=environment, preexec_fn=_block)
        if self._signals:  # one that came while the process was made
            self._process.send_signal(STOP)
        code = self._process.wait()
        return code if code >= 0 else 128 - code

    def _forward(self, number: int, frame: FrameType | None) -> None:
        self._signals.append(number)
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(STOP if len(self._signals) == 1 else FORCE)


def answer_supervisor() -> None:
    """In a supervised start, before training has handlers: end with 130 when asked to stop."""

    def leave(number: int, frame: FrameType | None) -> None:
        os._exit(130)

    for number in (STOP, FORCE):
        signal.signal(number, leave)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {STOP, FORCE})


def _block() -> None:
    signal.pthread_sigmask(signal.SIG_BLOCK, {STOP, FORCE})


def _handling(handlers: Mapping[int, Callable[[int, FrameType | None], None]]) -> AbstractContextManager[object]:
    stack = ExitStack()
    for number, handler in handlers.items():
        stack.callback(signal.signal, number, signal.signal(number, handler))
    return stack


if __name__ == "__main__":
    os.execv(sys.executable, [sys.executable, "-m", "platoon", "train", *sys.argv[1:], "--start"])
