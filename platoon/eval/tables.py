"""The tables of a report: a row a rollout, and a row a model call."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import polars as pl

from platoon.eval.calls import CallRow
from platoon.eval.records import USAGE_KEYS, RolloutRecord

ROLLOUT_COLUMNS = {
    "task_id": pl.String,
    "rollout_index": pl.Int64,
    "success": pl.Boolean,
    "reward": pl.Float64,
    "error": pl.String,
    "outcome_status": pl.String,
    "failure_kind": pl.String,
    "reward_key": pl.String,
    "wall_time_seconds": pl.Float64,
    "num_steps_total": pl.Int64,
    "num_steps_root": pl.Int64,
    "num_steps_subtrajectories": pl.Int64,
    "num_subtrajectories": pl.Int64,
    "failed_calls": pl.Int64,
    "source_path": pl.String,
}
CALL_COLUMNS = {
    "task_id": pl.String,
    "rollout_index": pl.Int64,
    "call_index": pl.Int64,
    "trajectory_id": pl.String,
    "call_id": pl.String,
    "kind": pl.String,
    "prompt_tokens": pl.Int64,
    "completion_tokens": pl.Int64,
    "seconds": pl.Float64,
    "finish_reason": pl.String,
}


def rollout_frame(records: Sequence[RolloutRecord]) -> pl.DataFrame:
    """Verdict, reward (null when errored), outcome, steps, seconds, and calls and tokens of all agents but judges."""
    columns = {name: [getattr(record, name) for record in records] for name in ROLLOUT_COLUMNS}
    for key in USAGE_KEYS:
        columns[key] = [sum(r.usage.get(bucket, {}).get(key, 0) for bucket in ("policy", "aux")) for r in records]
    return pl.DataFrame(columns, schema={**ROLLOUT_COLUMNS, **dict.fromkeys(USAGE_KEYS, pl.Int64)})


def call_frame(rows: Iterable[CallRow]) -> pl.DataFrame:
    """The calls in the order given."""
    return pl.DataFrame(list(rows), schema=CALL_COLUMNS, orient="row")
