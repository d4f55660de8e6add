"""`platoon train`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Literal

from platoon.cli.loading import load_config, log_to_stderr, warn


def train(config: Path, /, *overrides: str, orchestration: Literal["auto", "require", "off"] | None = None) -> int:
    """Train a policy, from the newest checkpoint of its run directory if there is one.

    Parameters
    ----------
    config
        The configuration file.
    overrides
        key=value or key+=item.
    orchestration
        Whether Prefect records the run; without it, what the configuration says.
    """
    from platoon.cli.shipped import load_flow

    loaded = load_config(config, overrides, "train")
    warn(loaded)
    log_to_stderr()
    code: int = load_flow("train").run_train(loaded, orchestration=orchestration, argv=sys.argv[1:])
    return code
