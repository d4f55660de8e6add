"""The report of an evaluation, computed from the rollouts on disk alone.

`reports/final_report.json` stays small; `reports/rollouts.parquet` has a row a rollout, `reports/task_results.jsonl` a
line a task. A resume that finishes an evaluation writes the same report as one that was never stopped.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import polars as pl

from platoon.eval.passk import estimate
from platoon.eval.records import USAGE_KEYS, RolloutRecord
from platoon.stats.files import write_atomic


def bundle(values: Iterable[float]) -> dict[str, float]:
    """Count, mean, min and max; zeros when there is no value."""
    found = list(values)
    if not found:
        return {"count": 0, "mean": 0.0, "min": 0.0, "max": 0.0}
    return {"count": len(found), "mean": sum(found) / len(found), "min": min(found), "max": max(found)}


def task_summary(task_id: str, records: Sequence[RolloutRecord]) -> dict[str, Any]:
    """One task's line: its valid rollouts, successes and rewards."""
    valid = [record for record in records if record.valid]
    rewards = [record.reward for record in valid]
    successes = sum(record.success for record in valid)
    return {
        "task_id": task_id,
        "has_valid_rollouts": bool(valid),
        "success_at_k": float(successes > 0),
        "num_rollouts": len(records),
        "num_valid_rollouts": len(valid),
        "num_failed_rollouts": len(records) - len(valid),
        "num_successful_rollouts": successes,
        "success_rate_within_task": successes / len(valid) if valid else 0.0,
        "reward_at_k_mean": sum(rewards) / len(rewards) if rewards else 0.0,
        "reward_at_k_max": max(rewards, default=0.0),
        "reward_at_k_min": min(rewards, default=0.0),
        "rollouts": [record.as_dict() for record in sorted(records, key=lambda r: r.rollout_index)],
    }


def summarize(tasks: Sequence[Mapping[str, Any]], records: Sequence[RolloutRecord], seconds: float) -> dict[str, Any]:
    """The `summary` block. Rates are over valid rollouts; errored ones are counted beside them."""
    valid = [record for record in records if record.valid]
    measured = [task for task in tasks if task["has_valid_rollouts"]]
    rewards = bundle(record.reward for record in valid)
    statuses = Counter(record.outcome_status or ("raised" if record.error else "none") for record in records)
    successes = sum(record.success for record in valid)
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
        "success_at_k": _mean(task["success_at_k"] for task in measured),
        "pass_at_k": _pass_at_k(measured),
        "reward_mean": rewards["mean"],
        "reward_max": rewards["max"],
        "reward_min": rewards["min"],
        "reward_at_k_mean": _mean(task["reward_at_k_mean"] for task in measured),
        "reward_at_k_max": _mean(task["reward_at_k_max"] for task in measured),
        "reward_at_k_min": _mean(task["reward_at_k_min"] for task in measured),
        "elapsed_seconds": round(seconds, 1),
    }


def _mean(values: Iterable[float]) -> float:
    found = list(values)
    return sum(found) / len(found) if found else 0.0


def _pass_at_k(tasks: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, float]]:
    """Unbiased pass@k for k = 1, 2, 4, … up to the most valid attempts of a task."""
    counts = [(task["num_valid_rollouts"], task["num_successful_rollouts"]) for task in tasks]
    most, k = max((n for n, _ in counts), default=0), 1
    found: dict[str, dict[str, float]] = {}
    while k <= most:
        one = estimate(counts, k)
        if one is not None:
            found[str(k)] = asdict(one)
        k *= 2
    return found


def usage_block(records: Sequence[RolloutRecord]) -> dict[str, Any]:
    """Totals and means per rollout of calls and tokens by bucket, errored rollouts included."""
    block = {}
    for bucket in ("policy", "aux", "judge", "verifier"):
        total = {key: sum(r.usage.get(bucket, {}).get(key, 0) for r in records) for key in USAGE_KEYS}
        mean = {key: value / len(records) if records else 0.0 for key, value in total.items()}
        block[bucket] = {"total": total, "mean_per_rollout": mean}
    return block


def write_report(
    output: Path, records: Sequence[RolloutRecord], seconds: float, about: Mapping[str, Any]
) -> dict[str, Any]:
    """Write the report's files; returns the report."""
    by_task: dict[str, list[RolloutRecord]] = {}
    for record in records:
        by_task.setdefault(record.task_id, []).append(record)
    tasks = [task_summary(task_id, found) for task_id, found in by_task.items()]
    valid = [record for record in records if record.valid]
    report = {
        **about,
        "summary": summarize(tasks, records, seconds),
        "stats": {
            name: {
                "overall": bundle(getattr(r, name) for r in valid),
                "success": bundle(getattr(r, name) for r in valid if r.success),
                "failure": bundle(getattr(r, name) for r in valid if not r.success),
            }
            for name in ("num_steps_total", "num_steps_root", "wall_time_seconds")
        },
        "usage": usage_block(records),
        "tables": {"rollouts": "reports/rollouts.parquet", "tasks": "reports/task_results.jsonl"},
    }
    reports = output / "reports"
    frame = rollout_frame(records)
    write_atomic(reports / "rollouts.parquet", lambda path: frame.write_parquet(path, compression="zstd"))
    lines = "".join(json.dumps(task, ensure_ascii=False) + "\n" for task in tasks)
    write_atomic(reports / "task_results.jsonl", lines.encode())
    write_atomic(reports / "final_report.json", (json.dumps(report, indent=2, ensure_ascii=False) + "\n").encode())
    return report


def rollout_frame(records: Sequence[RolloutRecord]) -> pl.DataFrame:
    """One row a rollout: verdict, reward, outcome, steps, seconds, tokens of the policy."""
    rows = [
        {**{k: v for k, v in r.as_dict().items() if k != "usage"}, **dict(r.usage.get("policy", {}))} for r in records
    ]
    schema = {
        "task_id": pl.String,
        "rollout_index": pl.Int64,
        "success": pl.Boolean,
        "reward": pl.Float64,
        "error": pl.String,
        "outcome_status": pl.String,
        "reward_key": pl.String,
        "wall_time_seconds": pl.Float64,
        "num_steps_root": pl.Int64,
        "num_steps_total": pl.Int64,
        "source_path": pl.String,
        **dict.fromkeys(USAGE_KEYS, pl.Int64),
    }
    return pl.DataFrame(rows, schema=schema)
