"""`platoon eval`: play every task of a split with one policy, then report from what is on disk.

A stopped evaluation goes on where its directory stands: finished rollouts are kept, errored ones are made again unless
the config says otherwise, and rollouts in flight leave nothing.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from platoon.config import ConfigError, EvalRun, Loaded, RunLock
from platoon.config.records import RESOLVED, dump_resolved, start_records, write_lock, write_process_record
from platoon.eval.components import judging_of, resolve_components
from platoon.eval.kept import read_all
from platoon.eval.output import check_provenance, choose_output, directory_names, pinned, set_aside
from platoon.eval.play import Owed, Resuming, play_all, still_owed
from platoon.eval.policy import OpenPolicy, provenance, weights_source
from platoon.eval.records import Judging
from platoon.eval.report import write_report
from platoon.eval.tasks import EvalTasks, list_tasks
from platoon.render import tool_call_parsing

log = logging.getLogger("platoon.eval")


class EvaluationFailed(RuntimeError):
    """`fail_fast` and a rollout errored: there is no report."""


@dataclass(frozen=True)
class EvalResult:
    """`summary` is the report's; None when only rollouts were asked for."""

    output_dir: Path
    summary: Mapping[str, Any] | None
    exit_code: int = 0


async def eval_run(loaded: Loaded, open_policy: OpenPolicy, argv: Sequence[str] = ()) -> EvalResult:
    """Evaluate as the config says. ConfigError (exit 78) before anything is written where the user can mend it;
    EvaluationFailed under `fail_fast`. Cancelled, it leaves every settled rollout and nothing of those in flight."""
    config = loaded.eval_config
    if config.stage == "report":
        output = _existing_output(config)
        resolve_components(config).check()
        with RunLock(output, key="inference.output_dir"):
            check_provenance(output, provenance(config, None))
            return await asyncio.to_thread(_report, config, output, judging_of(config), 0.0)
    if config.inference.renderer_name is None:
        raise ConfigError("inference.renderer_name: name the renderer of the policy, such as chat_template")
    source = weights_source(config.inference.model_path)
    identity = provenance(config, source)
    components = resolve_components(config)
    components.check()
    judging = judging_of(config)
    parsing = tool_call_parsing(
        config.inference.model_name, config.inference.renderer_name, config.inference.renderer_kwargs
    )
    tasks = await list_tasks(config)
    output = choose_output(config, loaded.site.runs)
    with RunLock(output, key="inference.output_dir"):
        check_provenance(output, identity)
        log.info("the evaluation writes to %s", output)
        dump_resolved(pinned(loaded, output), output / RESOLVED)
        write_process_record(output, "eval")
        records = {**start_records(loaded), **components.records()}
        judges = {"enabled": identity["judges"]}
        policy_record = {key: value for key, value in identity.items() if key != "judges"}
        records |= {"policy": policy_record, "judges": judges, "excluded_tasks": tasks.excluded, **parsing}
        write_lock(output, argv, **records)
        owed = await asyncio.to_thread(_owed, config, tasks, output, judging)
        seconds = 0.0
        if owed:
            async with open_policy(config, source, output) as policy:
                began = time.monotonic()
                workers = config.inference.workflow.num_concurrent_workers
                await play_all(owed, policy, workers, identity, judging)
                seconds = time.monotonic() - began
        return await asyncio.to_thread(_report, config, output, judging, seconds)


def _existing_output(config: EvalRun) -> Path:
    output = Path(config.inference.output_dir or "").expanduser().absolute()
    if not output.is_dir():
        raise ConfigError(f"inference.output_dir: {output} does not exist; stage report needs one with rollouts")
    return output


def _owed(config: EvalRun, tasks: EvalTasks, output: Path, judging: Judging) -> list[Owed]:
    inference = config.inference
    if not inference.resume and (aside := set_aside(output)) is not None:
        log.info("inference.resume is false: the rollouts that were here are in %s", aside)
    names = directory_names([task.task_id for task in tasks.tasks])
    resuming = Resuming(judging, inference.retry_errored)
    count = inference.workflow.num_rollouts_per_task
    owed = still_owed(output, tasks.tasks, names, count, resuming)
    log.info("%d of %d rollouts are to be played", len(owed), len(tasks.tasks) * count)
    return owed


def _report(config: EvalRun, output: Path, judging: Judging, seconds: float) -> EvalResult:
    found = read_all(output, judging)
    errors = [one.record.error for one in found if one.record.error]
    if config.inference.workflow.fail_fast and errors:
        raise EvaluationFailed(f"{len(errors)} of {len(found)} rollouts errored, the first: {errors[0]}")
    if config.stage == "rollouts":
        return EvalResult(output, None)
    about = {
        "created_at": datetime.now(UTC).isoformat(timespec="seconds"),
        "model": {
            "model_name": config.inference.model_name,
            "model_path": config.inference.model_path,
            "renderer_name": config.inference.renderer_name,
        },
        "workflow_config": config.inference.workflow.model_dump(mode="json"),
        "judges_enabled": config.inference.judges,
    }
    return EvalResult(output, write_report(output, found, seconds, about)["summary"])
