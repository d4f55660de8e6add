"""Verdicts on dumped collections: status, success, outages, depth, usage."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from platoon.eval.calls import call_rows
from platoon.eval.records import Judging, Kept, RolloutRecord, judge

KEPT = Kept("t", 2, wall_time_seconds=1.5)


def step(call: str | None = None, kind: str | None = None, **misc: Any) -> dict[str, Any]:
    if call is not None:
        misc["action_misc"] = {"completion_id": call, "usage": {"prompt_tokens": 5, "completion_tokens": 2}}
        misc["action_misc"] |= {} if kind is None else {"kind": kind}
    return {"misc": misc}


def trajectory(
    steps: list[dict[str, Any]] | None = None, parent: str | None = None, reward: float = 0.0, **misc: Any
) -> dict[str, Any]:
    info = None if parent is None else {"id": parent, "fork_step": 0}
    return {"steps": steps or [], "reward": reward, "error_message": None, "parent_info": info, "misc": misc}


def collection(root: dict[str, Any], **below: dict[str, Any]) -> dict[str, Any]:
    return {"id": "c", "trajectories": {"root": root, **below}}


def verdict(root: dict[str, Any], threshold: float = 1.0, **below: dict[str, Any]) -> RolloutRecord:
    return judge(collection(root, **below), KEPT, Judging(threshold))


SCORED = {"status": "scored", "reward_key": "reward"}


@pytest.mark.parametrize(
    ("flags", "reward", "threshold", "success"),
    [
        ({"reward/success": 0.6}, 0.0, 0.5, True),
        ({"reward/success": 0.4, "success": 1.0}, 1.0, 0.5, False),
        ({"success": True}, 0.0, 1.0, True),
        ({}, 0.6, 0.5, True),
        ({}, 0.4, 0.5, False),
    ],
)
def test_success_is_the_environments_own_score(
    flags: dict[str, Any], reward: float, threshold: float, success: bool
) -> None:
    root = trajectory([step(reward_misc=flags)], reward=reward, outcome=SCORED)
    found = verdict(root, threshold)
    assert (found.success, found.reward, found.error) == (success, reward, None)


def test_a_processor_makes_the_reward_and_never_the_environments_success() -> None:
    def halved(root: Mapping[str, Any]) -> tuple[float, Mapping[str, float]]:
        return root["reward"] / 2, {"reward/whole": root["reward"], "note": 1.0}

    def judged(root: dict[str, Any], task_id: str, **processors: Any) -> RolloutRecord:
        judging = Judging(0.5, processors={key.replace("_", "::"): fn for key, fn in processors.items()})
        return judge(collection(root), Kept(task_id, 0), judging)

    flagged = trajectory([step(reward_misc={"reward/success": 0.8})], reward=0.8, outcome=SCORED)
    bare = trajectory(reward=0.8, outcome=SCORED)
    found = judged(flagged, "a::1", a_=halved)
    assert (found.success, found.reward) == (True, 0.4)
    assert found.reward_components == {"reward/whole": 0.8, "note": 1.0}
    assert judged(bare, "a::1", a_=halved).success is False  # without a flag by the processed reward
    assert judged(bare, "b::1", a_=halved).reward == 0.8
    assert judge(collection(bare), Kept("b::1", 0), Judging(processors={"": halved})).reward == 0.4
    broken: tuple[Any, ...] = (lambda root: (float("nan"), {}), lambda root: 1 / 0)
    for one in broken:
        failed = judged(flagged, "a::1", a_=one)
        assert (failed.success, failed.reward, failed.reward_components) == (None, None, {})
        assert failed.error is not None
        assert failed.error.startswith("reward_processor: ")


def test_only_calls_with_a_price_cost() -> None:
    calls = [{"cost_usd": 0.25, "dialect": "d"}, {"dialect": "d"}, {"cost_usd": 0.5, "dialect": "d"}, {}]
    steps = [{"misc": {"action_misc": call}} for call in calls]
    assert verdict(trajectory(steps, outcome=SCORED)).cost == {"usd": 0.75, "unpriced_calls": 1}
    assert verdict(trajectory([step("1")], outcome=SCORED)).cost == {"usd": None, "unpriced_calls": 0}


def test_without_an_outcome_a_flag_needs_the_whole_point() -> None:
    flagged = trajectory([step(reward_misc={"success": 0.9})], reward=0.9)
    assert verdict(flagged, 0.5).success is False
    assert verdict(trajectory(reward=0.6), 0.5).success is True
    assert verdict(trajectory(reward=0.6), 0.5).outcome_status is None


@pytest.mark.parametrize(
    ("misc", "status"),
    [
        ({"outcome": {"status": "invalid"}}, "invalid"),
        ({"outcome": {"status": "error"}}, "error"),
        ({"outcome": {"status": "cancelled"}}, "cancelled"),
        ({"outcome": {"status": "timeout"}}, "timeout"),
        ({"trajectory_cancelled": True}, "cancelled"),
        ({"trajectory_timed_out": True}, "timeout"),
        ({"trajectory_invalid": True}, "invalid"),
    ],
)
def test_what_is_not_scored_has_no_number(misc: dict[str, Any], status: str) -> None:
    found = verdict(trajectory(reward=1.0, **misc))
    assert (found.outcome_status, found.reward, found.success, found.valid) == (status, None, None, False)


def test_only_a_timeout_counts_as_a_failure_when_asked() -> None:
    judging = Judging(count_timeout_as_failure=True)
    timed_out = judge(collection(trajectory(outcome={"status": "timeout"})), KEPT, judging)
    assert (timed_out.success, timed_out.valid) == (False, True)
    crashed = judge(collection(trajectory(outcome={"status": "error"})), KEPT, judging)
    assert crashed.valid is False


def test_a_graded_rollout_with_failed_calls_is_errored() -> None:
    found = verdict(trajectory(reward=1.0, outcome=SCORED), child=trajectory(parent="root", gateway_errors=2))
    assert (found.error, found.failed_calls) == ("backend_unavailable: 2 model calls failed", 2)
    assert found.reward is None
    refused = verdict(trajectory(reward=1.0, outcome=SCORED, judges_refused={"count": 1}))
    assert refused.error == "judges_off: 1 judge calls were refused"


def test_agents_below_the_root_count_by_depth_and_judges_do_not() -> None:
    found = verdict(
        trajectory([step("1"), step("2")], outcome=SCORED),
        child=trajectory([step("3")], parent="root"),
        grandchild=trajectory([step("4"), step("5")], parent="child"),
        verifier=trajectory([step("6")], parent="root", agent={"role": "verifier"}),
        lost=trajectory(parent="nobody"),
    )
    assert (found.num_steps_total, found.num_steps_root, found.num_steps_subtrajectories) == (5, 2, 3)
    assert found.num_subtrajectories == 3
    assert found.subtrajectory_depth_counts == {"0": 1, "1": 1, "2": 1}
    assert found.subtrajectory_depth_steps == {"0": 0, "1": 1, "2": 2}
    assert found.judges == {"verifier_agents": 1, "verifier_steps": 1, "judge_calls": 0}


def test_calls_are_counted_and_listed_by_kind() -> None:
    root = trajectory(
        [step("1"), step("2", "aux"), step(None)],
        outcome=SCORED,
        judge_calls=[{"call_id": "3", "usage": {"prompt_tokens": 1, "completion_tokens": 1}, "finish_reason": "stop"}],
        model_call_spans={"1": [2.0, 2.5], "3": [3.0, 4.0]},
        model_generations={"1": {"finish_reason": "length"}},
    )
    verifier = trajectory([step("4"), step("5", "judge")], parent="root", agent={"role": "verifier"})
    found = verdict(root, verifier=verifier)
    assert {bucket: usage["calls"] for bucket, usage in found.usage.items()} == {
        "policy": 1,
        "aux": 1,
        "judge": 2,
        "verifier": 1,
    }
    assert found.usage["judge"]["prompt_tokens"] == 6
    rows = list(call_rows(collection(root, verifier=verifier), KEPT))
    assert [(row.call_index, row.call_id, row.kind, row.seconds, row.finish_reason) for row in rows] == [
        (0, "1", "policy", 0.5, "length"),
        (1, "2", "aux", None, None),
        (2, "3", "judge", 1.0, "stop"),
        (3, "4", "verifier", None, None),
        (4, "5", "judge", None, None),
    ]
    assert {(row.task_id, row.rollout_index) for row in rows} == {("t", 2)}
