"""The model calls of a dumped rollout, one row each."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from platoon.eval.records import Kept, calls_of


class CallRow(NamedTuple):
    """One call. `call_index` counts within the rollout; `seconds` is None where the rollout did not say."""

    task_id: str
    rollout_index: int
    call_index: int
    trajectory_id: str
    call_id: str | None
    kind: str
    prompt_tokens: int | None
    completion_tokens: int | None
    seconds: float | None
    finish_reason: str | None


def call_rows(collection: Mapping[str, Any], kept: Kept) -> Iterator[CallRow]:
    """Rows of a collection, trajectory by trajectory. `kind` is the bucket its tokens are counted in."""
    index = 0
    for key, trajectory in collection["trajectories"].items():
        spans = trajectory["misc"].get("model_call_spans") or {}
        generations = trajectory["misc"].get("model_generations") or {}
        for kind, call in calls_of(trajectory):
            call_id = call.get("completion_id") or call.get("call_id")
            usage = call.get("usage") or {}
            start_end = spans.get(call_id)
            reason = call.get("finish_reason") or (generations.get(call_id) or {}).get("finish_reason")
            yield CallRow(
                task_id=kept.task_id,
                rollout_index=kept.rollout_index,
                call_index=index,
                trajectory_id=str(key),
                call_id=call_id,
                kind=kind,
                prompt_tokens=usage.get("prompt_tokens"),
                completion_tokens=usage.get("completion_tokens"),
                seconds=None if start_end is None else float(start_end[1]) - float(start_end[0]),
                finish_reason=reason,
            )
            index += 1
