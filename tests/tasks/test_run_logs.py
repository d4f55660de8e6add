"""The bound on log lines: a burst, then a steady rate; warnings last longer; what is left out is counted."""

from __future__ import annotations

import logging

from tasks.run_logs import BURST, LINES_A_SECOND, bound_rate


class Kept(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())


def test_a_flood_is_bounded_counted_and_never_hides_a_warning() -> None:
    handler, out = Kept(), [False]
    bound_rate(handler, lambda: out[0])
    bound_rate(handler, lambda: out[0])
    assert len(handler.filters) == 1
    logger = logging.Logger("platoon.flood")
    logger.addHandler(handler)
    for number in range(5_000):
        logger.info("line %d", number)
    infos = len(handler.lines)
    assert 0.7 * BURST <= infos <= BURST + 5 * LINES_A_SECOND
    logger.warning("disk full")
    assert handler.lines[-1] == "disk full"
    assert handler.lines[-2] == f"{5_000 - infos} log lines were left out here"
    out[0] = True
    logger.error("nobody there")
    assert handler.lines[-1] == "disk full"
