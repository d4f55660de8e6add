"""Step metrics from real credited groups."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest

from platoon.credit import CreditSettings, GroupOutput, credit_group
from platoon.stats.metrics import (
    Dequeued,
    RewardKeys,
    SubmittedBatch,
    Tracker,
    batch_metrics,
    censoring_metrics,
    kind_metrics,
    label_metrics,
    label_prefixes,
    record_completion,
    record_group_stats,
    workload_metrics,
)
from platoon.stats.schema import MemberResult
from tests.credit.rollouts import member
from tests.stats.groups import group, scored

SENT = SubmittedBatch(datums=2, attention_tokens=8, action_tokens=4)


def credited(*rewards: float | None, **more: Any) -> GroupOutput:
    return credit_group([member(reward) for reward in rewards], CreditSettings(), task_id="t", **more)


def test_the_tracker_kinds() -> None:
    tracker = Tracker("train")
    tracker.scalar(a=1.0)
    tracker.scalar({"a": 2.0, "b/c": 5.0})
    tracker.denominator({"d": [True, False, True], "e": 0})
    tracker.denominator({"d": 3})
    tracker.stat({"s": [1.0, 3.0], "none": []})
    tracker.stat({"s": [8.0]})
    found = tracker.export_and_clear()
    assert (found["train/a"], found["train/a__count"], found["train/b/c"]) == (1.5, 2, 5.0)
    assert (found["train/d"], found["train/e"]) == (5, 0)
    assert (found["train/s/avg"], found["train/s/min"], found["train/s/max"]) == (4.0, 1.0, 8.0)
    assert "train/none/avg" not in found
    assert tracker.export_and_clear() == {}


def test_batch_metrics_count_what_was_taken_and_average_what_was_consumed() -> None:
    items = [
        Dequeued(credited(1.0, 0.0, None)),
        Dequeued(credited(0.5, 0.5), marker=True),
        Dequeued(credited(9.0, 9.0), stale=True),
        Dequeued(None),
        Dequeued(GroupOutput([], "unknown")),
    ]
    found = batch_metrics(items, RewardKeys(), updates=0)
    assert (found["batch/groups"], found["batch/groups_dequeued"]) == (2, 5)
    assert (found["batch/stale_groups"], found["batch/groups_without_stats"]) == (1, 2)
    assert (found["batch/optimizer_updates"], found["batch/skipped_optimizer"]) == (0, 1.0)
    assert (found["batch/task_reward/avg"], found["batch/task_reward/count"]) == (0.5, 4)
    assert found["batch/task_reward_valid/avg"] == pytest.approx(4 / 5)
    assert (found["batch/outcome/scored"], found["batch/outcome/error"]) == (4, 1)
    assert sum(found[f"batch/outcome/{s}"] for s in ("invalid", "timeout", "cancelled", "none")) == 0
    assert found["batch/task_reward_at_k_max/avg"] == 0.75
    assert found["batch/rollout_time/count"] == 2


def test_a_step_without_a_valid_rollout_has_no_mean_reward() -> None:
    found = batch_metrics([Dequeued(credited(None, None))], RewardKeys(), updates=1)
    assert "batch/task_reward/avg" not in found
    assert found["batch/task_reward_valid/avg"] == 0.0
    assert found["batch/outcome/error"] == 2


def test_reward_keys_go_on_at_zero() -> None:
    keys = RewardKeys()
    one = credit_group([member(1.0, key="a/b"), member(0.0, key="c")], CreditSettings(), task_id="t")
    first = batch_metrics([Dequeued(one)], keys, updates=1)
    assert (first["batch/reward_key/a--b"], first["batch/reward_key_mismatch"]) == (1, 1)
    second = batch_metrics([Dequeued(credited(1.0))], keys, updates=1)
    assert (second["batch/reward_key/a--b"], second["batch/reward_key/reward"]) == (0, 1)


def test_labels_beyond_the_64th_are_told(caplog: pytest.LogCaptureFixture) -> None:
    assert len(label_prefixes(map(str, range(64)))) == 64
    assert caplog.text == ""
    assert list(label_prefixes([*map(str, range(65)), "64"]))[:2] == ["64", "0"]
    assert "65 labels: the 64 most frequent have metrics of their own" in caplog.text


def test_kinds_and_labels() -> None:
    def item(rewards: list[float], label: str, **more: Any) -> Dequeued:
        return Dequeued(credited(*rewards, label=label), group(0, "t", [scored(r) for r in rewards]), **more)

    items = [
        item([1.0, 0.0], "x"),
        item([1.0, 1.0], "x"),
        item([0.0, 0.0], "y"),
        item([0.2, 0.2], "y", threshold=0.1),
        item([1.0, 0.0], "y", stale=True),
        item([1.0, 1.0], "y", marker=True),
        Dequeued(None),
    ]
    prefixes = label_prefixes(["y", "x", "y", None, "x/z"])
    assert prefixes == {"y": "environment/y", "x": "environment/x", "x/z": "environment/x--z"}
    assert len(label_prefixes(map(str, range(99)), "a/b")) == 64
    found = kind_metrics(items, prefixes)
    assert (found["batch/informative_groups"], found["batch/all_pass_groups"]) == (1, 2)
    assert (found["batch/all_fail_groups"], found["batch/uniform_mixed_groups"]) == (1, 0)
    assert found["batch/environment/y/all_pass_groups"] == 1
    assert found["batch/environment/x--z/informative_groups"] == 0
    labels = label_metrics(items, prefixes, RewardKeys())
    assert (labels["batch/environment/y/groups"], labels["batch/environment/y/stale_groups"]) == (3, 1)
    assert labels["batch/environment/x/task_reward/avg"] == 0.75
    assert labels["batch/environment/x--z/outcome/scored"] == 0
    assert "batch/environment/x--z/task_reward/avg" not in labels


def test_workload_totals_and_series() -> None:
    outputs = [credited(1.0, 0.0, None), credited(0.5, 0.5)]
    items = [Dequeued(output) for output in outputs]
    found = workload_metrics(items, SENT)
    assert found["workload/batch/total_input_tokens"] == 15
    assert found["workload/batch/total_tokens"] == 25
    assert found["workload/batch/total_policy_excluded_datums"] == 1
    assert found["workload/batch/total_task_retained_datums"] == 4
    assert found["workload/batch/total_task_filter_dropped_datums"] == 0
    assert found["workload/training_batch/total_non_submitted_datums"] == 3
    assert "workload/training_batch/total_non_submitted_datums" not in workload_metrics([*items, Dequeued(None)], SENT)
    with pytest.raises(ValueError, match="9 datums were sent"):
        workload_metrics(items, replace(SENT, datums=9))
    tracker = Tracker("train")
    for output in outputs:
        record_group_stats(tracker, output)
        record_completion(tracker, output)
    series = tracker.export_and_clear()
    assert (series["train/workload/rollout/count"], series["train/workload/task/count"]) == (5, 2)
    assert series["train/workload/task/total_input_tokens/avg"] == 7.5
    assert series["train/workload/task/requested_rollouts/max"] == 3
    assert series["train/credit/baseline/avg"] == 0.5
    assert series["train/credit/root_advantage/abs_avg"] == 0.25
    assert series["train/credit/root_advantage/abs_avg__count"] == 2
    assert series["train/rollout_completion/groups"] == 2
    assert series["train/rollout_completion/outcome/error"] == 1
    assert series["train/rollout_completion/task_reward/avg"] == 0.5
    assert series["train/rollout_completion/rollout_time__count"] == 2


def test_censoring() -> None:
    cut = MemberResult(None, None, valid=False, outcome="cancelled", disposition="straggler_killed")
    mixed = [scored(1.0, seconds=1.0), scored(0.0, seconds=9.0), scored(1.0, seconds=2.0), cut]
    items = [Dequeued(None, group(0, "a", mixed)), Dequeued(None, group(1, "b", [scored(1.0), scored(1.0)]))]
    assert censoring_metrics(items) == {
        "batch/censoring/censored_share": pytest.approx(1 / 6),
        "batch/censoring/mixed_groups": 1,
        "batch/censoring/slowest_pass_rate": 0.0,
        "batch/censoring/others_pass_rate": 1.0,
    }
    assert censoring_metrics([Dequeued(None)]) == {}


def test_every_metric_is_a_finite_number() -> None:
    items = [Dequeued(credited(1.0, 0.0), group(0, "t", [scored(1.0), scored(0.0)])), Dequeued(None)]
    found = batch_metrics(items, RewardKeys(), updates=1) | workload_metrics(items, SENT) | kind_metrics(items)
    assert all(math.isfinite(value) for value in found.values())
