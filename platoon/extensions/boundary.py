"""The border to foreign code: environments, harnesses, graders, whatever a user or an extension brought.

`Boundary` catches what escapes from a block of such code and keeps it with its origin; the caller turns it into an
outcome. A SystemExit is caught too: foreign code that calls `exit()` must not end a trainer. Cancellation and Ctrl-C
pass through.
"""

from __future__ import annotations

import logging
from collections import Counter
from types import TracebackType
from typing import Literal

Origin = Literal[
    "environment",
    "grader",
    "harness",
    "program",
    "rollout",
    "reward processor",
    "sampler",
    "admission rule",
    "extension",
    "metrics",
]
_SHOWN = 3
_log = logging.getLogger("platoon")
_seen: Counter[tuple[str, str, str]] = Counter()


class Boundary:
    """`with Boundary("grader") as caught: …` then look at `caught.error`.

    The block's exception, when it raised one, else None. Its traceback is logged for the first few of a kind; `quiet`
    leaves logging to the caller. `every` keeps even what would pass through: right only on a thread of its own.
    """

    def __init__(self, origin: Origin, *, every: bool = False, quiet: bool = False) -> None:
        self.origin = origin
        self.error: BaseException | None = None
        self._every = every
        self._quiet = quiet

    def __enter__(self) -> Boundary:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        if error is None or not (self._every or isinstance(error, Exception | SystemExit)):
            return False
        self.error = error
        if not self._quiet:
            self.report()
        return True

    def report(self, *, expected: type[BaseException] | tuple[type[BaseException], ...] = ()) -> None:
        """Log what escaped, the first few times of a kind. The traceback is left out for an `expected` class."""
        if self.error is None:
            return
        key = (self.origin, type(self.error).__name__, _place(self.error))
        _seen[key] += 1
        if _seen[key] <= _SHOWN:
            trace = None if isinstance(self.error, expected) else self.error
            _log.warning("the %s raised %s", self.origin, describe(self.error), exc_info=trace)

    @property
    def text(self) -> str:
        """Class and message of what escaped; empty when nothing did."""
        return "" if self.error is None else describe(self.error)


def describe(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__


def _place(error: BaseException) -> str:
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return "" if trace is None else f"{trace.tb_frame.f_code.co_filename}:{trace.tb_lineno}"
