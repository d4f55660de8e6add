"""`platoon prepare`."""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path

from platoon.cli.loading import log_to_stderr, warn
from platoon.config import Loaded


def prepare(config: Path, /, *overrides: str, dry_run: bool = False) -> int:
    """Fetch and build what a configuration needs, so that its run finds everything in place.

    Parameters
    ----------
    config
        The configuration file, or a file of environments.
    overrides
        key=value or key+=item.
    dry_run
        Only say what is missing; code 1 when something is.
    """
    from platoon.cli.shipped import load_flow

    flow = load_flow("prepare")
    loaded = flow.load_any(config, overrides)
    if isinstance(loaded, Loaded):
        warn(loaded)
    log_to_stderr()
    code: int = flow.run_prepare(loaded, dry_run=dry_run)
    return code


def prepared(loaded: Loaded) -> int:
    """Prepare before another command: as `prepare`, its lines on stderr, so that stdout is the command's own."""
    from platoon.cli.shipped import load_flow

    with contextlib.redirect_stdout(sys.stderr):
        code: int = load_flow("prepare").run_prepare(loaded, dry_run=False)
    return code
