"""The records of a start in its run directory: resolved config, lock, process, identity. Written before any draw."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

from platoon.config import ConfigError, Loaded
from platoon.config.records import supervisor_pid, update_lock, write_process_record, write_run_record
from platoon.extensions.components import Components
from platoon.render import tool_call_parsing
from platoon.train.identity import IDENTITY, bind_identity, overlap_warnings, run_identity
from platoon.train.plan import RunPlan

log = logging.getLogger("platoon.train")


def record_start(loaded: Loaded, plan: RunPlan, argv: Sequence[str], components: Components) -> None:
    """Write the records of a start. ConfigError when the run directory belongs to another run, which lock.json then
    says under `resume_refused`, and for a renderer that cannot be built."""
    run_dir = plan.run_dir
    policy = plan.config.train
    parsing = tool_call_parsing(policy.model_name, policy.renderer_name, policy.renderer_kwargs)
    records: dict[str, Any] = {**components.records(), **parsing}
    if excluded := plan.train.excluded():
        records["excluded_tasks"] = excluded
    write_run_record(loaded, run_dir, argv, **records)
    write_process_record(run_dir, "train")
    if plan.config.watchdog.max_restarts > 0 and supervisor_pid() is None:
        log.warning("watchdog.max_restarts: not used here; only `platoon train` starts a run again")
    for warning in overlap_warnings(plan.train, plan.held_out):
        log.warning("%s", warning)
    identity = run_identity(plan.config, plan.train, plan.held_out)
    problems = bind_identity(run_dir, identity, plan.train, resuming=plan.resume is not None)
    if problems:
        update_lock(run_dir, resume_refused={"identity": str(run_dir / IDENTITY), "problems": problems})
        raise ConfigError(problems, f"the run in {run_dir} cannot go on with this configuration")
