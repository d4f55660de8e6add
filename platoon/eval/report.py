"""The report of an evaluation, computed from the rollouts on disk alone.

`reports/final_report.json` stays small: trajectories stay where they are, `reports/rollouts.parquet` has a row a
rollout, `reports/calls.parquet` a row a model call, `reports/task_results.jsonl` a line a task. A resume that finishes
an evaluation reports the same summary as one that was never stopped.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from itertools import groupby
from math import fsum
from pathlib import Path
from typing import Any

from platoon.eval.kept import Finished
from platoon.eval.passk import estimate, ladder
from platoon.eval.records import BUCKETS, USAGE_KEYS, RolloutRecord
from platoon.eval.tables import call_frame, rollout_frame
from platoon.stats.files import write_atomic

MEASURES = {
    "num_steps_total": "num_steps_total",
    "num_steps_root": "num_steps_root",
    "num_steps_subtrajectories": "num_steps_subtrajectories",
    "rollout_wall_time_seconds": "wall_time_seconds",
}
TABLES = {
    "rollouts": "reports/rollouts.parquet",
    "calls": "reports/calls.parquet",
    "tasks": "reports/task_results.jsonl",
}


def write_report(output: Path, found: Sequence[Finished], seconds: float, about: Mapping[str, Any]) -> dict[str, Any]:
    """Write the report's files; returns the report. `found` is in report order, a task's rollouts together."""
    records = [one.record for one in found]
    tasks = [task_summary(task_id, list(own)) for task_id, own in groupby(records, key=lambda r: r.task_id)]
    report = {
        **about,
        "summary": summarize(tasks, records, seconds),
        "stats": {name: by_verdict(records, attribute) for name, attribute in MEASURES.items()},
        "reward_components": reward_components(records),
        "subtrajectory_stats_by_depth": subtrajectory_stats(records),
        "usage": usage_block(records),
        "cost": cost_block(records),
        "backend": {
            "failed_calls": sum(r.failed_calls for r in records),
            "rollouts_with_failed_calls": sum(r.failed_calls > 0 for r in records),
        },
        "judges": {
            "enabled": about["judges_enabled"],
            **{
                key: sum(r.judges.get(key, 0) for r in records)
                for key in ("verifier_agents", "verifier_steps", "judge_calls")
            },
        },
        "tables": TABLES,
        "tasks": [{key: value for key, value in task.items() if key != "rollouts"} for task in tasks],
    }
    del report["judges_enabled"]
    rollouts, calls = rollout_frame(records), call_frame(row for one in found for row in one.calls)
    write_atomic(output / TABLES["rollouts"], lambda path: rollouts.write_parquet(path, compression="zstd"))
    write_atomic(output / TABLES["calls"], lambda path: calls.write_parquet(path, compression="zstd"))
    write_atomic(output / TABLES["tasks"], "".join(json.dumps(task) + "\n" for task in tasks).encode())
    text = json.dumps(report, indent=2, ensure_ascii=False) + "\n"
    write_atomic(output / "reports" / "final_report.json", text.encode())
    return report


def bundle(values: Iterable[float]) -> dict[str, float]:
    """Count, mean, min and max; zeros when there is no value."""
    found = list(values)
    if not found:
        return {"count": 0, "mean": 0.0, "min": 0.0, "max": 0.0}
    return {"count": len(found), "mean": fsum(found) / len(found), "min": min(found), "max": max(found)}


def by_verdict(records: Sequence[RolloutRecord], attribute: str) -> dict[str, dict[str, float]]:
    """Bundles of one measure over the valid rollouts, the successes and the failures."""
    return {name: bundle(getattr(r, attribute) for r in group) for name, group in verdicts(records).items()}


def verdicts(records: Sequence[RolloutRecord]) -> dict[str, list[RolloutRecord]]:
    valid = [record for record in records if record.valid]
    return {
        "overall": valid,
        "success": [record for record in valid if record.success],
        "failure": [record for record in valid if not record.success],
    }


def task_summary(task_id: str, records: Sequence[RolloutRecord]) -> dict[str, Any]:
    """One task's line: its valid rollouts, successes and rewards. `num_failed_rollouts` are the errored ones."""
    valid = [record for record in records if record.valid]
    rewards = bundle(rewards_of(valid))
    successes = sum(bool(record.success) for record in valid)
    return {
        "task_id": task_id,
        "has_valid_rollouts": bool(valid),
        "success_at_k": float(successes > 0),
        "num_rollouts": len(records),
        "num_valid_rollouts": len(valid),
        "num_failed_rollouts": len(records) - len(valid),
        "num_successful_rollouts": successes,
        "success_rate_within_task": successes / len(valid) if valid else 0.0,
        "reward_at_k_mean": rewards["mean"],
        "reward_at_k_max": rewards["max"],
        "reward_at_k_min": rewards["min"],
        "rollouts": [record.as_dict() for record in records],
    }


def rewards_of(records: Iterable[RolloutRecord]) -> list[float]:
    return [record.reward for record in records if record.reward is not None]


def summarize(tasks: Sequence[Mapping[str, Any]], records: Sequence[RolloutRecord], seconds: float) -> dict[str, Any]:
    """The `summary` block. Rates are over valid rollouts; errored ones are counted beside them."""
    valid = [record for record in records if record.valid]
    measured = [task for task in tasks if task["has_valid_rollouts"]]
    rewards = bundle(rewards_of(valid))
    statuses = Counter(record.outcome_status or ("raised" if record.error else "none") for record in records)
    successes = sum(bool(record.success) for record in valid)
    return {
        "total_tasks": len(tasks),
        "tasks_without_valid_rollouts": len(tasks) - len(measured),
        "total_rollouts": len(records),
        "valid_rollouts": len(valid),
        "successful_rollouts": successes,
        "failed_rollouts": len(valid) - successes,
        "errored_rollouts": len(records) - len(valid),
        "outcome_status_counts": dict(sorted(statuses.items())),
        "reward_key_counts": dict(sorted(Counter(r.reward_key for r in records if r.reward_key).items())),
        "success_rate": successes / len(valid) if valid else 0.0,
        "success_at_k": bundle(task["success_at_k"] for task in measured)["mean"],
        "pass_at_k": pass_at_k_block(measured),
        "reward_mean": rewards["mean"],
        "reward_max": rewards["max"],
        "reward_min": rewards["min"],
        **{
            key: bundle(task[key] for task in measured)["mean"]
            for key in ("reward_at_k_mean", "reward_at_k_max", "reward_at_k_min")
        },
        "elapsed_seconds": round(seconds, 1),
    }


def pass_at_k_block(tasks: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, float]]:
    """Unbiased pass@k for k = 1, 2, 4, … and the most valid attempts that a task has."""
    counts = [(task["num_valid_rollouts"], task["num_successful_rollouts"]) for task in tasks]
    found = {}
    for k in ladder(max((n for n, _ in counts), default=0)):
        one = estimate(counts, k)
        if one is not None:
            found[str(k)] = asdict(one)
    return found


def usage_block(records: Sequence[RolloutRecord]) -> dict[str, Any]:
    """Totals and means per rollout of calls and tokens by bucket, errored rollouts included."""
    block = {}
    for bucket in BUCKETS:
        total = {key: sum(r.usage.get(bucket, {}).get(key, 0) for r in records) for key in USAGE_KEYS}
        mean = {key: value / len(records) if records else 0.0 for key, value in total.items()}
        block[bucket] = {"total": total, "mean_per_rollout": mean}
    return block


def cost_block(records: Sequence[RolloutRecord]) -> dict[str, float | int | None]:
    """Dollars of all rollouts, errored ones included; None when no call had a price."""
    dollars = [float(usd) for r in records if (usd := r.cost.get("usd")) is not None]
    total = fsum(dollars) if dollars else None
    return {
        "total_usd": total,
        "mean_usd_per_rollout": total / len(records) if total is not None else None,
        "unpriced_calls": sum(int(r.cost.get("unpriced_calls") or 0) for r in records),
    }


def reward_components(records: Sequence[RolloutRecord]) -> dict[str, dict[str, dict[str, float]]]:
    """Of each `reward/…` component: bundles by verdict (a valid rollout without it has 0.0), and bundles over the tasks
    of a task's mean, max and min."""
    groups = verdicts(records)
    names = sorted({name for r in groups["overall"] for name in r.reward_components if name.startswith("reward/")})
    by_task = [list(own) for _, own in groupby(groups["overall"], key=lambda r: r.task_id)]
    found = {}
    for name in names:
        block = {verdict: bundle(_component(own, name)) for verdict, own in groups.items()}
        tasks = [bundle(_component(own, name)) for own in by_task]
        found[name] = block | {f"at_k_{key}": bundle(task[key] for task in tasks) for key in ("mean", "max", "min")}
    return found


def _component(records: Iterable[RolloutRecord], name: str) -> list[float]:
    return [r.reward_components.get(name, 0.0) for r in records]


def subtrajectory_stats(records: Sequence[RolloutRecord]) -> dict[str, dict[str, dict[str, float]]]:
    """overall/success/failure -> depth (from "1") -> how many agents ran below the root there, and their steps."""
    return {name: _depths(group) for name, group in verdicts(records).items()}


def _depths(records: Sequence[RolloutRecord]) -> dict[str, dict[str, float]]:
    agents: Counter[str] = Counter()
    steps: Counter[str] = Counter()
    for record in records:
        agents.update(record.subtrajectory_depth_counts)
        steps.update(record.subtrajectory_depth_steps)
    return {
        depth: {
            "total_subtrajectories": agents[depth],
            "total_steps": steps[depth],
            "avg_subtrajectories_per_rollout": agents[depth] / len(records),
            "avg_steps_per_rollout": steps[depth] / len(records),
            "avg_steps_per_subtrajectory": steps[depth] / agents[depth],
        }
        for depth in sorted(agents, key=int)
        if int(depth) >= 1
    }
