"""Ending with the parent process, also when it is killed: a pipe on standard input, and the kernel's death signal.

The pipe alone fails where the parent forked other children that inherited its end; the signal alone fires when the
*thread* that started us ends, so it is believed only once the process itself has a new parent.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import threading

PR_SET_PDEATHSIG = 1
SIGNAL = signal.SIGUSR2


def die_with_parent() -> None:
    """End this process at once when its parent is gone; what is on disk is always whole. Main thread only."""
    parent = os.getppid()

    def check(*_: object) -> None:
        if os.getppid() != parent:
            os._exit(0)

    signal.signal(SIGNAL, check)
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, int(SIGNAL), 0, 0, 0)
    threading.Thread(target=_watch_pipe, name="platoon-parent-pipe", daemon=True).start()


def _watch_pipe() -> None:
    while os.read(0, 4096):
        pass
    os._exit(0)
