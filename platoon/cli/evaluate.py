"""`platoon eval`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Literal

from platoon.cli.loading import check_key, load_config, log_to_stderr, refuse_unisolated, told_to_prepare, warn
from platoon.cli.prepare import prepared


def evaluate(
    config: Path,
    /,
    *overrides: str,
    orchestration: Literal["auto", "require", "off"] | None = None,
    prepare: bool = False,
) -> int:
    """Evaluate a policy; the report's summary is printed as JSON.

    Parameters
    ----------
    config
        The configuration file.
    overrides
        key=value or key+=item.
    orchestration
        Whether Prefect records the run; without it, what the configuration says.
    prepare
        First fetch and build what the evaluation needs, as `platoon prepare` does.
    """
    from platoon.cli.shipped import load_flow

    loaded = load_config(config, overrides, "eval")
    warn(loaded)
    log_to_stderr()
    reports = loaded.eval_config.stage == "report"
    if prepare and reports:
        print("platoon: nothing is prepared for stage report", file=sys.stderr)
    if not reports:
        refuse_unisolated(loaded)
        check_key(loaded)
    if prepare and not reports and (failed := prepared(loaded)) != 0:
        return failed
    with told_to_prepare(config, overrides):
        code: int = load_flow("eval").run_eval(loaded, orchestration=orchestration, argv=sys.argv[1:])
    return code
