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

from platoon.config import ConfigError, EnvironmentConfig, EvalRun, Loaded, RunLock, rollout_settings
from platoon.config.records import RESOLVED, dump_resolved, write_lock, write_process_record
from platoon.envs.listing import list_rows
from platoon.envs.services import shared_service
from platoon.eval.output import check_provenance, choose_output
from platoon.eval.policy import OpenPolicy, Policy, weights_source
from platoon.eval.records import Judging, RolloutRecord, failed, keep, read, rollout_directory
from platoon.eval.report import write_report
from platoon.extensions.boundary import Boundary
from platoon.rollout.episode import Episode, EpisodeRequest, new_rollout_id, run_episode
from platoon.rollout.route import Phase, build_route

log = logging.getLogger("platoon.eval")


@dataclass(frozen=True)
class EvalTask:
    """One task to play: the entry that lists it, its id there, and its id in the report."""

    entry: EnvironmentConfig
    raw_id: str
    task_id: str


@dataclass(frozen=True)
class EvalResult:
    """`summary` is the report's; None when only rollouts were asked for."""

    output_dir: Path
    summary: Mapping[str, Any] | None
    exit_code: int = 0


async def eval_run(loaded: Loaded, open_policy: OpenPolicy, argv: Sequence[str] = ()) -> EvalResult:
    """Evaluate as the config says. ConfigError (exit 78) before anything is written where the user can mend it."""
    config = loaded.eval_config
    source = weights_source(config.inference.model_path)
    if config.stage != "report" and config.inference.renderer_name is None:
        raise ConfigError("inference.renderer_name: name the renderer of the policy, such as chat_template")
    output = choose_output(config, Path("runs").absolute())
    log.info("evaluation writes to %s", output)
    with RunLock(output):
        judging = Judging(
            config.inference.workflow.success_threshold, config.inference.workflow.count_timeout_as_failure
        )
        began = time.monotonic()
        if config.stage == "report":
            records = [r for r in (read(p.parent, judging) for p in _metadata(output)) if r is not None]
            return _report(config, output, records, 0.0)
        dump_resolved(loaded, output / RESOLVED)
        write_process_record(output, "eval")
        tasks = await list_tasks(config)
        async with open_policy(config, source, output) as policy:
            check_provenance(output, policy.provenance)
            write_lock(output, argv, policy=dict(policy.provenance))
            records = await play_all(config, tasks, policy, output, judging)
        errors = [record.error for record in records if record.error]
        if config.inference.workflow.fail_fast and errors:
            raise RuntimeError(f"{len(errors)} rollouts errored, the first: {errors[0]}")
        if config.stage == "rollouts":
            return EvalResult(output, None)
        return _report(config, output, records, time.monotonic() - began)


def _metadata(output: Path) -> list[Path]:
    return sorted((output / "rollouts").glob("*/rollout_*/metadata.json"))


def _report(config: EvalRun, output: Path, records: Sequence[RolloutRecord], seconds: float) -> EvalResult:
    about = {
        "created_at": datetime.now(UTC).isoformat(timespec="seconds"),
        "model": {
            "model_name": config.inference.model_name,
            "model_path": config.inference.model_path,
            "renderer_name": config.inference.renderer_name,
        },
        "workflow_config": config.inference.workflow.model_dump(mode="json"),
    }
    report = write_report(output, records, seconds, about)
    return EvalResult(output, report["summary"])


async def list_tasks(config: EvalRun) -> list[EvalTask]:
    """Every task of the split, in the config's order; ids of a mixture carry their entry's name."""
    phase: Phase = "train" if config.split == "train" else "eval"
    mixture = len(config.environments) > 1
    if not config.environments:
        raise ConfigError("environments: name at least one environment to evaluate on")
    tasks = []
    for entry in config.environments:
        if entry.service is None:
            raise ConfigError(f"environments[{entry.label}].service: missing; name an environment with env or service")
        service = shared_service(entry.service, entry.service_kwargs)
        for row in await list_rows(entry, phase, service, split=config.split):
            task_id = f"{entry.label}::{row.task_id}" if mixture else row.task_id
            tasks.append(EvalTask(entry, row.task_id, task_id))
    if not tasks:
        raise ConfigError(f"split: no environment lists a task in {config.split!r}")
    return tasks


async def play_all(
    config: EvalRun, tasks: Sequence[EvalTask], policy: Policy, output: Path, judging: Judging
) -> list[RolloutRecord]:
    """Play what is owed, at most `num_concurrent_workers` at once; records in task order, by index."""
    workflow = config.inference.workflow
    workers = asyncio.Semaphore(workflow.num_concurrent_workers)

    async def one(task: EvalTask, index: int) -> RolloutRecord:
        directory = rollout_directory(output, task.task_id, index)
        kept = read(directory, judging) if config.inference.resume else None
        if kept is not None and (kept.valid or not config.inference.retry_errored):
            return kept
        async with workers:
            episode = await _play(config, task, index, policy)
        if episode is None:
            return failed(task.task_id, index, "the rollout raised; see the log")
        return keep(directory, task.task_id, index, episode, policy.provenance, judging)

    async with asyncio.TaskGroup() as group:
        running = [
            group.create_task(one(task, index)) for task in tasks for index in range(workflow.num_rollouts_per_task)
        ]
    return [task.result() for task in running]


async def _play(config: EvalRun, task: EvalTask, index: int, policy: Policy) -> Episode | None:
    phase: Phase = "train" if config.split == "train" else "eval"
    request = EpisodeRequest(
        task_id=task.raw_id,
        route=build_route(task.entry, phase, task.raw_id),
        config=rollout_settings(config.inference, task.entry, config.split),
        rollout_id=new_rollout_id(task.task_id),
        seed_scope=f"{task.task_id}/{index}",
    )
    with Boundary("rollout"):
        return await run_episode(request, policy.gateway, policy.server)
    return None
