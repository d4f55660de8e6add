"""`platoon train`."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter

from platoon.cli.loading import check_key, load_config, log_to_stderr, refuse_unisolated, told_to_prepare, warn
from platoon.config import Loaded, RunLock, run_directory

Orchestration = Literal["auto", "require", "off"]


def train(
    config: Path,
    /,
    *overrides: str,
    orchestration: Orchestration | None = None,
    prepare: bool = False,
    start: Annotated[bool, Parameter(show=False)] = False,
) -> int:
    """Train a policy, from the newest checkpoint of its run directory if there is one.

    Parameters
    ----------
    config
        The configuration file.
    overrides
        key=value or key+=item.
    orchestration
        Whether Prefect records the run; without it, what the configuration says.
    prepare
        First fetch and build what the run needs, as `platoon prepare` does.
    start
        One start of a supervised run.
    """
    if start:
        from platoon.train.supervise import answer_supervisor

        answer_supervisor()
    loaded = load_config(config, overrides, "train")
    if not start:
        warn(loaded)
    log_to_stderr()
    refuse_unisolated(loaded)
    check_key(loaded)
    if prepare:
        from platoon.cli.prepare import prepared

        code = prepared(loaded)
        if code != 0:
            return code
    if loaded.train_config.watchdog.max_restarts > 0 and not start:
        return supervised(loaded, orchestration)
    from platoon.cli.shipped import load_flow

    with told_to_prepare(config, overrides):
        result: int = load_flow("train").run_train(loaded, orchestration=orchestration, argv=sys.argv[1:])
    return result


def supervised(loaded: Loaded, orchestration: Orchestration | None) -> int:
    """Train in processes of their own that are started again when they die, from the resolved configuration."""
    from platoon.config.records import RESOLVED, SUPERVISOR, check_name, write_run_record
    from platoon.train.supervise import Restarts, Supervisor

    config = loaded.train_config
    run_dir = run_directory(config)
    check_name(loaded, run_dir)
    with RunLock(run_dir):
        write_run_record(loaded, run_dir, sys.argv[1:])
    command = [sys.executable, "-m", "platoon", "train", str(run_dir / RESOLVED), "--start"]
    command += ["--orchestration", orchestration] if orchestration is not None else []
    environment = {SUPERVISOR: str(os.getpid())}
    if config.stats.wandb.api_key is not None:
        environment["WANDB_API_KEY"] = config.stats.wandb.api_key
    return Supervisor(command, run_dir, Restarts(config.watchdog.max_restarts), environment).run()
