"""Metrics of a training step that follow from its settled groups: batch, workload, credit and completion series.

Pure functions from groups to plain values, and one that records them all. Absent values stay absent: a step without a
valid rollout has no mean reward, not a mean of 0.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from operator import add

from platoon.rollout.outcome import OUTCOME_STATUSES
from platoon.stats.schema import GroupRecord, RolloutStats, SettledGroup, Workload
from platoon.stats.totals import KINDS
from platoon.stats.tracker import Tracker

__all__ = [
    "Dequeued",
    "RewardKeys",
    "SubmittedBatch",
    "Tracker",
    "batch_metrics",
    "censoring_metrics",
    "kind_metrics",
    "label_prefixes",
    "record_completion",
    "record_group_stats",
    "workload_metrics",
]

log = logging.getLogger(__name__)
MAX_LABELS = 64


@dataclass(frozen=True)
class Dequeued:
    """One item that a step took: its output (None: the group failed), its record, and what became of it.

    `marker`: a group that an admission rule rejected; it brings statistics and no datums. `threshold`: its entry's.
    """

    output: SettledGroup | None
    record: GroupRecord | None = None
    stale: bool = False
    marker: bool = False
    threshold: float = 1.0

    @property
    def consumed(self) -> bool:
        """Counts in the batch's reward statistics."""
        return self.output is not None and not self.stale


@dataclass(frozen=True)
class SubmittedBatch:
    """What the step really sent to the service."""

    datums: int
    attention_tokens: int
    action_tokens: int


@dataclass
class RewardKeys:
    """Reward keys seen so far: their series go on at 0."""

    seen: dict[str, None] = field(default_factory=dict)

    def counts(self, counts: Mapping[str, int]) -> dict[str, int]:
        """Counts of the keys in `counts` and 0 for those seen before."""
        found = {key: value for key, value in counts.items() if key.startswith("reward_key/")}
        self.seen.update(dict.fromkeys(found))
        return {key: found.get(key, 0) for key in self.seen}


def label_prefixes(labels: Iterable[str | None], column: str = "_platoon_environment") -> dict[str, str]:
    """Metric prefixes of labels, most frequent first, ties by name, at most 64 (warned). None counts for nothing."""
    name = "environment" if column == "_platoon_environment" else column.replace("/", "--")
    counts = Counter(label for label in labels if label is not None)
    ranked = sorted(counts, key=lambda label: (-counts[label], label))
    if len(ranked) > MAX_LABELS:
        log.warning("%d labels: the %d most frequent have metrics of their own", len(ranked), MAX_LABELS)
    return {label: f"{name}/{label.replace('/', '--')}" for label in ranked[:MAX_LABELS]}


def merge_stats(found: Iterable[RolloutStats]) -> RolloutStats:
    """Values of several groups one after the other, counts summed."""
    values: dict[str, list[float]] = {}
    counts: Counter[str] = Counter()
    for stats in found:
        for key, series in stats.values.items():
            values.setdefault(key, []).extend(series)
        counts.update(stats.counts)
    return RolloutStats({key: tuple(series) for key, series in values.items()}, counts)


def stats_metrics(stats: RolloutStats, keys: RewardKeys, prefix: str) -> dict[str, float]:
    """`<prefix><stat>/{avg,min,max,count}`, all six outcome counts, reward keys and their mismatches."""
    found: dict[str, float] = {}
    for key, values in stats.values.items():
        if values:
            found[f"{prefix}{key}/avg"] = sum(values) / len(values)
            found[f"{prefix}{key}/min"], found[f"{prefix}{key}/max"] = min(values), max(values)
            found[f"{prefix}{key}/count"] = len(values)
    for status in (*OUTCOME_STATUSES, "none"):
        found[f"{prefix}outcome/{status}"] = stats.counts.get(f"outcome/{status}", 0)
    found |= {f"{prefix}{key}": count for key, count in keys.counts(stats.counts).items()}
    found[f"{prefix}reward_key_mismatch"] = stats.counts.get("reward_key_mismatch", 0)
    return found


def batch_metrics(items: Sequence[Dequeued], keys: RewardKeys, *, updates: int) -> dict[str, float]:
    """`batch/*` of a step: counts of what it took, and rewards of what it consumed."""
    consumed = [item.output for item in items if item.output is not None and item.consumed]
    with_stats = [output for output in consumed if output.rollout_stats.counts]
    found = stats_metrics(merge_stats(output.rollout_stats for output in with_stats), keys, "batch/")
    without = sum(item.output is None or not item.output.rollout_stats.counts for item in items)
    return found | {
        "batch/groups": len(with_stats),
        "batch/groups_dequeued": len(items),
        "batch/stale_groups": sum(item.stale for item in items),
        "batch/groups_without_stats": without,
        "batch/optimizer_updates": updates,
        "batch/skipped_optimizer": float(updates == 0),
    }


def label_metrics(items: Sequence[Dequeued], prefixes: Mapping[str, str], keys: RewardKeys) -> dict[str, float]:
    """`batch/<column>/<label>/*` for every label, also at zero."""
    found: dict[str, float] = {}
    for label, place in prefixes.items():
        mine = [item for item in items if item.output is not None and item.output.label == label]
        outputs = [item.output for item in mine if item.output is not None and item.consumed]
        prefix = f"batch/{place}/"
        stats = merge_stats(output.rollout_stats for output in outputs)
        shown = {key: stats.values[key] for key in ("task_reward", "num_steps") if key in stats.values}
        found |= stats_metrics(RolloutStats(shown, stats.counts), keys, prefix)
        found[f"{prefix}groups"] = sum(bool(output.rollout_stats.counts) for output in outputs)
        found[f"{prefix}stale_groups"] = sum(item.stale for item in mine)
    return found


def kind_metrics(items: Sequence[Dequeued], prefixes: Mapping[str, str] | None = None) -> dict[str, float]:
    """`batch/{informative,all_pass,all_fail,uniform_mixed}_groups` of the groups that trained, and per label."""
    places: dict[str | None, str] = {None: "batch/", **{k: f"batch/{v}/" for k, v in (prefixes or {}).items()}}
    found = {f"{place}{kind}_groups": 0.0 for place in places.values() for kind in KINDS}
    for item in items:
        if item.record is None or item.output is None or not item.consumed or item.marker:
            continue
        kind = item.record.kind(item.threshold)
        if kind is None:
            continue
        for label in {None, item.output.label}:
            if label in places:
                found[f"{places[label]}{kind}_groups"] += 1.0
    return found


def censoring_metrics(items: Sequence[Dequeued]) -> dict[str, float]:
    """`batch/censoring/*` of groups under a straggler policy: what the cut costs, and whether slow members differ.

    Over groups whose valid members both pass and fail: pass rate of the slowest valid member against the others'.
    """
    members = [m for item in items if item.record is not None for m in item.record.members]
    if not members:
        return {}
    found = {"batch/censoring/censored_share": sum(m.disposition == "straggler_killed" for m in members) / len(members)}
    mixed = slow_passes = other_passes = others = 0
    for item in items:
        valid = [m for m in item.record.members if m.valid] if item.record is not None else []
        timed = [m for m in valid if m.seconds is not None]
        passes = sum(m.passes(item.threshold) for m in valid)
        if not timed or passes in (0, len(valid)):
            continue
        slowest = max(timed, key=lambda m: m.seconds or 0.0)
        mixed += 1
        slow_passes += slowest.passes(item.threshold)
        other_passes += passes - slowest.passes(item.threshold)
        others += len(valid) - 1
    found["batch/censoring/mixed_groups"] = mixed
    if mixed:
        found["batch/censoring/slowest_pass_rate"] = slow_passes / mixed
        found["batch/censoring/others_pass_rate"] = other_passes / others
    return found


def workload_metrics(items: Sequence[Dequeued], submitted: SubmittedBatch) -> dict[str, float]:
    """`workload/batch/*` and `workload/training_batch/*`: everything the step took, stale groups included.

    ValueError when more datums were sent than rollouts made.
    """
    outputs = [item.output for item in items if item.output is not None]
    counted = [output for output in outputs if _has_workload(output)]
    total = reduce(add, (output.workload for output in counted), Workload())
    found: dict[str, float] = {f"workload/batch/total_{key}": value for key, value in total.totals().items()}
    retained = sum(output.task_retained_datums for output in outputs)
    found |= {
        "workload/batch/total_tasks": len(items),
        "workload/batch/total_tasks_with_workload_metadata": len(counted),
        "workload/batch/total_requested_rollouts": sum(output.requested_rollouts for output in outputs),
        "workload/batch/total_observed_rollouts": sum(output.observed_rollouts for output in outputs),
        "workload/batch/total_workflow_trainable_rollouts": sum(output.trainable_rollouts for output in outputs),
        **_retained("workload/batch/", total, retained),
        "workload/training_batch/total_submitted_datums": submitted.datums,
        "workload/training_batch/total_attention_tokens": submitted.attention_tokens,
        "workload/training_batch/total_action_tokens": submitted.action_tokens,
    }
    if len(counted) == len(items):
        unsent = total.postmerge_datums - submitted.datums
        if unsent < 0:
            raise ValueError(f"{submitted.datums} datums were sent but only {total.postmerge_datums} were made")
        found["workload/training_batch/total_non_submitted_datums"] = unsent
    return found


def record_group_stats(tracker: Tracker, output: SettledGroup) -> None:
    """Record a dequeued group's `credit/*`, `error_filter/*`, `subagent_sampling/*` and workload series."""
    for key, value in output.group_stats.items():
        tracker.scalar({key: value})
    if not _has_workload(output):
        return
    tracker.denominator({"workload/rollout/count": len(output.rollout_workloads), "workload/task/count": 1})
    for workload in output.rollout_workloads:
        tracker.stat({f"workload/rollout/total_{key}": [value] for key, value in workload.totals().items()})
    tracker.stat({f"workload/task/total_{key}": [value] for key, value in output.workload.totals().items()})
    tracker.stat(
        {
            "workload/task/requested_rollouts": [output.requested_rollouts],
            "workload/task/observed_rollouts": [output.observed_rollouts],
            "workload/task/workflow_trainable_rollouts": [output.trainable_rollouts],
        }
    )
    retained = _retained("workload/task/", output.workload, output.task_retained_datums)
    tracker.stat({key: [value] for key, value in retained.items()})


def record_completion(tracker: Tracker, output: SettledGroup) -> None:
    """Record `rollout_completion/*` of a dequeued group, stale or not."""
    stats = output.rollout_stats
    tracker.denominator({"rollout_completion/groups": 1})
    seconds = stats.values.get("rollout_time", ())
    for value in seconds:
        tracker.scalar({"rollout_completion/rollout_time": value})
    tracker.stat({f"rollout_completion/{k}": values for k, values in stats.values.items() if k != "rollout_time"})
    tracker.denominator({f"rollout_completion/{key}": count for key, count in stats.counts.items()})


def _has_workload(output: SettledGroup) -> bool:
    return output.requested_rollouts > 0


def _retained(prefix: str, total: Workload, retained: int) -> dict[str, float]:
    """What the group's own filters did to the datums that sampling kept."""
    return {
        f"{prefix}total_task_retained_datums": retained,
        f"{prefix}total_task_workflow_trainable_datums": retained,
        f"{prefix}total_task_workflow_non_trainable_datums": total.postmerge_datums - retained,
        f"{prefix}total_task_filter_dropped_datums": total.post_sampling_datums - retained,
    }
