"""`platoon eval`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Literal

from platoon.cli.loading import load_config, log_to_stderr, warn


def evaluate(config: Path, /, *overrides: str, orchestration: Literal["auto", "require", "off"] | None = None) -> int:
    """Evaluate a policy; the report's summary is printed as JSON.

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

    loaded = load_config(config, overrides, "eval")
    warn(loaded)
    log_to_stderr()
    code: int = load_flow("eval").run_eval(loaded, orchestration=orchestration, argv=sys.argv[1:])
    return code
