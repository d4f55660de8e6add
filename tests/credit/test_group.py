"""Verdicts in their order, baselines, filters and what statistics keep."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from platoon.credit import CreditPlugins, CreditSettings, Datum, MemberRollout, credit_group, group_baselines
from platoon.credit.errors import error_completions
from platoon.credit.filters import error_stats, filter_error_tokens
from platoon.credit.rollout import CompletionHooks
from platoon.rollout.outcome import Outcome
from platoon.rollout.trajectory import Interactions, TrajectoryCollection
from tests.credit.rollouts import Calls, member, step

SETTINGS = CreditSettings(group_size=4)
rewards_list = st.lists(st.floats(-1, 1).map(lambda x: round(x, 3)), min_size=1, max_size=6)


def advantage(datum: Datum) -> float:
    """The one advantage of a datum's action targets."""
    values = set(datum.advantages_T[datum.mask_T > 0].tolist())
    assert not datum.advantages_T[datum.mask_T == 0].any()
    return float(values.pop()) if len(values) == 1 else math.nan


def lost(disposition: str) -> MemberRollout:
    return MemberRollout(None, Interactions(), Outcome.infra("lost", status="cancelled"), disposition)


@settings(max_examples=60, deadline=None)
@given(rewards_list, st.booleans())
def test_advantages_are_reward_minus_baseline(rewards: list[float], leave_one_out: bool) -> None:
    out = credit_group(
        [member(r) for r in rewards], replace(SETTINGS, leave_one_out_baseline=leave_one_out), task_id="t"
    )
    count, total = len(rewards), sum(rewards)
    found = [advantage(d) for d in out.datums]
    if len(set(rewards)) == 1:
        assert found == [0.0] * count
        assert (out.verdict, out.trainable_rollouts) == ("uniform", 0)
        return
    base = [(total - r) / (count - 1) if leave_one_out else total / count for r in rewards]
    assert found == [float(np.float32(r - b)) for r, b in zip(rewards, base, strict=True)]
    assert sum(found) == pytest.approx(0.0, abs=1e-5)
    assert out.verdict == "trained"
    assert out.trainable_rollouts == sum(a != 0 for a in found)
    assert out.group_stats["credit/baseline/avg"] == pytest.approx(sum(base) / count)
    assert out.group_stats["credit/baseline/spread"] == max(base) - min(base)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.one_of(st.none(), st.sampled_from([0.0, 0.1, 1.0])), min_size=1, max_size=6), st.booleans())
def test_a_failure_never_enters_a_baseline(rewards: list[float | None], leave_one_out: bool) -> None:
    config = replace(SETTINGS, leave_one_out_baseline=leave_one_out)
    scored = [r for r in rewards if r is not None]
    out = credit_group([member(r) for r in rewards], config, task_id="t")
    alone = credit_group([member(r) for r in scored], config, task_id="t")
    assert [advantage(d) for d in out.datums] == [advantage(d) for d in alone.datums]
    assert out.rollout_stats.values.get("task_reward", ()) == tuple(scored)
    assert [m.reward is not None and m.valid for m in out.members] == [r is not None for r in rewards]
    assert out.verdict == (alone.verdict if scored else "no_completed_root")
    assert sum(v for k, v in out.rollout_stats.counts.items() if k.startswith("outcome/")) == len(rewards)


@pytest.mark.parametrize(
    ("members", "minimum", "verdict"),
    [
        ([member(1.0, key="a"), member(0.0, key="b"), lost("straggler_killed")], 4, "reward_key_mismatch"),
        ([lost("straggler_killed"), lost("worker_crashed")], 1, "no_results"),
        ([lost("straggler_killed"), lost("worker_crashed")], 2, "no_results"),
        ([member(1.0), member(None)], 2, "below_min"),
        ([member(None), member(None)], 2, "below_min"),
        ([member(None), member(None, status="timeout")], 1, "no_completed_root"),
        ([member(1.0), member(0.0)], 2, "trained"),
        ([member(0.5), member(0.5)], 1, "uniform"),
    ],
)
def test_verdicts_in_order(members: list[MemberRollout], minimum: int, verdict: str) -> None:
    out = credit_group(members, replace(SETTINGS, min_successful_group_size=minimum), task_id="t")
    assert out.verdict == verdict
    assert ("group_size_rejected" in out.group_stats) == (verdict == "below_min")
    if verdict not in ("trained", "uniform"):
        assert out.datums == []
        assert (out.trainable_rollouts, out.task_retained_datums) == (0, 0)
    assert out.requested_rollouts == len(members)


def test_children_of_a_failed_root_train_against_the_valid_roots() -> None:
    calls: Calls = {"root": [((1, 2), (3,))], "kid": [((5, 6), (7, 8))]}
    out = credit_group(
        [member(1.0), member(0.0), member(None, calls=calls, child_rewards={"kid": 1.0})], SETTINGS, task_id="t"
    )
    child = out.datums[-1]
    assert (child.depth, child.traj_start, advantage(child)) == (1, 1.0, 0.5)
    assert child.targets_T.tolist() == [6, 7, 8]
    assert (out.workload.postmerge_datums, out.workload.policy_eligible_datums) == (4, 3)
    assert not out.members[2].valid
    assert out.members[2].scored is None


def test_a_child_is_centred_on_its_rollouts_baseline_with_its_own_reward() -> None:
    calls: Calls = {"root": [((1, 2), (3,))], "kid": [((5, 6), (7, 8))]}
    settings_ = replace(SETTINGS, leave_one_out_baseline=True)
    first = member(1.0, calls=calls, child_rewards={"kid": 0.25})
    out = credit_group([first, member(0.0), member(0.5)], settings_, task_id="t")
    assert [advantage(d) for d in out.datums] == [0.75, 0.0, -0.75, 0.0]


def test_a_scored_rollout_without_calls_stays_a_measurement() -> None:
    empty = member(0.0)
    assert empty.collection is not None
    empty.collection.root.steps.clear()
    out = credit_group([member(1.0), member(0.0), empty, member(None)], SETTINGS, task_id="t")
    assert [m.disposition for m in out.members] == ["completed", "completed", "conversion_empty", "completed"]
    assert sum(m.valid for m in out.members) == 3
    assert sum(m.passes(1.0) for m in out.members) == 1
    assert out.rollout_stats.counts["outcome/error"] == 1
    assert [advantage(d) for d in out.datums] == [0.5, -0.5]


def test_no_trajectories_and_a_reward_that_is_no_number() -> None:
    nothing = replace(member(1.0), collection=TrajectoryCollection())
    out = credit_group([nothing, member(math.nan), member(1.0), member(0.0)], SETTINGS, task_id="t")
    assert [m.disposition for m in out.members] == ["no_trajectories", "error", "completed", "completed"]
    assert [m.reward for m in out.members] == [None, None, 1.0, 0.0]
    assert out.observed_rollouts == 3
    assert [advantage(d) for d in out.datums] == [0.5, -0.5]


def test_error_completions_are_discouraged_but_never_reinforced() -> None:
    calls: Calls = {"root": [((1, 2), (3, 4)), ((1, 2, 3, 4, 9), (5,))]}
    members = [member(1.0, calls=calls), member(0.0, calls=calls)]
    for one in members:
        assert one.collection is not None
        one.collection.root.steps[0].misc["error"] = "NameError"
    out = credit_group(members, SETTINGS, task_id="t")
    good, bad = out.datums
    assert good.mask_T.tolist() == [0, 0, 0, 0, 1]
    assert bad.mask_T.tolist() == [0, 1, 1, 0, 1]
    assert bad.advantages_T.tolist() == [0, -0.5, -0.5, 0, -0.5]
    assert out.group_stats["error_filter/detected_action_tokens"] == 4
    assert out.group_stats["error_filter/suppressed_positive_action_tokens"] == 2
    assert out.group_stats["error_filter/retained_nonpositive_action_tokens"] == 2
    assert all(d.errors_T is None for d in out.datums)
    unfiltered = credit_group(members, replace(SETTINGS, filter_errors=False), task_id="t")
    assert [d.action_tokens for d in unfiltered.datums] == [3, 3]
    assert "error_filter/detected_action_tokens" not in unfiltered.group_stats


def test_a_group_of_errors_alone_has_no_datums() -> None:
    members = [member(1.0), member(0.0)]
    assert members[0].collection is not None
    assert members[1].collection is not None
    members[0].collection.root.steps[0].misc["output"] = "Traceback (most recent call last):"
    hooks = CompletionHooks(message_only=(lambda steps: {"root-0"},))
    plugins = CreditPlugins(hooks=hooks)
    out = credit_group(members, replace(SETTINGS, filter_message_actions=True), task_id="t", plugins=plugins)
    assert (out.verdict, out.datums) == ("no_datums", [])
    assert out.group_stats["error_filter/emptied_datums"] == 2


def test_the_filter_without_a_channel_drops_only_empty_masks() -> None:
    (datum,) = credit_group([member(1.0)], SETTINGS, task_id="t").datums
    silent = replace(datum, mask_T=np.zeros_like(datum.mask_T))
    counts = Counter[str]()
    assert filter_error_tokens([datum, silent], counts) == [datum]
    assert error_stats(counts) == {}


@pytest.mark.parametrize(
    ("misc", "error"),
    [
        ({"error": ""}, False),
        ({"output": "a TRACEBACK"}, True),
        ({"observation_events": [{"observation": {"content": [{"is_error": True}]}}]}, True),
        ({"observation_events": {"root": [{"kind": "ToolObservation", "is_error": True}]}}, True),
        ({"events": [{"kind": "Action", "is_error": True}]}, False),
        ({"observation_events": [{"observation": {"is_error": False}}]}, False),
        ({"message": {"content": "Traceback"}}, False),
    ],
)
def test_error_marks(misc: dict[str, object], error: bool) -> None:
    assert error_completions([step("a", **misc)]) == (frozenset({"a"}) if error else frozenset())


def test_thinning_is_counted_and_its_member_stays_in_the_baseline() -> None:
    calls: Calls = {"root": [((1, 2), (3,))], "kid": [((5, 6), (7, 8)), ((9, 9), (7,))]}
    config = replace(SETTINGS, subagent_datum_keep_probability=0.0)
    out = credit_group([member(1.0, calls=calls), member(0.0)], config, task_id="t")
    assert [d.depth for d in out.datums] == [0, 0]
    assert out.group_stats["subagent_sampling/depth_1/eligible_datums"] == 2
    assert out.group_stats["subagent_sampling/depth_1/retained_datums"] == 0
    assert out.group_stats["subagent_sampling/eligible_loss_tokens"] == 6
    assert (out.workload.policy_eligible_datums, out.workload.post_sampling_datums) == (4, 2)


def test_the_first_kept_datum_with_actions_starts_its_trajectory() -> None:
    calls: Calls = {"root": [((1, 2), (3,)), ((7, 7), (8,))]}
    out = credit_group([member(1.0, calls=calls), member(0.0, calls=calls)], SETTINGS, task_id="t")
    assert [d.traj_start for d in out.datums] == [1.0, 0.0, 1.0, 0.0]


def test_rollout_statistics() -> None:
    first = member(1.0, version=3, seconds=2.0)
    assert first.collection is not None
    first.collection.root.misc["model_generations"] = {"root-0": {"parsed_tool_calls": 2, "unparsed_tool_calls": 1}}
    out = credit_group([first, member(0.0, version=5)], SETTINGS, task_id="t", label="l", entry="e")
    assert out.rollout_stats.values["num_tool_calls"] == (2.0, 0.0)
    assert out.rollout_stats.values["num_unparsed_tool_calls"] == (1.0, 0.0)
    assert out.rollout_stats.values["avg_input_tokens_per_step"] == (3.0, 3.0)
    assert out.rollout_stats.values["task_reward_at_k_mean"] == (0.5,)
    assert out.rollout_stats.values["rollout_time"] == (2.0,)
    assert out.rollout_stats.counts["reward_key/reward"] == 2
    assert out.members[0].versions == {"main": (3, 3)}
    assert (out.label, out.entry) == ("l", "e")


def test_reward_components() -> None:
    plugins = CreditPlugins(processor=lambda t: (t.reward * 2, {"reward/success": t.reward}))
    out = credit_group([member(1.0), member(0.0)], SETTINGS, task_id="t", plugins=plugins)
    assert out.rollout_stats.values["reward/success"] == (1.0, 0.0)
    assert out.rollout_stats.values["root_success_at_k_max"] == (1.0,)
    assert [m.reward for m in out.members] == [2.0, 0.0]
    assert [advantage(d) for d in out.datums] == [1.0, -1.0]


def test_baselines_need_a_valid_member() -> None:
    with pytest.raises(ValueError, match="valid root"):
        group_baselines([1.0], [False])
    assert group_baselines([0.1] * 3, [True] * 3) == [0.1] * 3
    assert group_baselines([1.0, 5.0, 0.0], [True, False, True], True) == [0.0, 0.5, 1.0]
    assert group_baselines([1.0, 5.0], [True, False], True) == [1.0, 1.0]
