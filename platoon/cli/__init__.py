"""The command line of platoon. `main` runs one command."""

from __future__ import annotations

import sys
from collections.abc import Sequence


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code. `argv`: without the program's name; None takes the process's."""
    from platoon.cli.app import run

    return run(sys.argv[1:] if argv is None else argv)
