"""`platoon prepare`."""

from __future__ import annotations

from pathlib import Path

from platoon.cli.loading import load_config, log_to_stderr


def prepare(config: Path, /, *overrides: str, dry_run: bool = False) -> int:
    """Fetch and build what a configuration needs, so that its run finds everything in place.

    Parameters
    ----------
    config
        The configuration file.
    overrides
        key=value or key+=item.
    dry_run
        Only say what is missing; code 1 when something is.
    """
    from platoon.cli.shipped import load_flow

    loaded = load_config(config, overrides)
    log_to_stderr()
    code: int = load_flow("prepare").run_prepare(loaded, dry_run=dry_run)
    return code
