"""Rewards over the agent tree, on collections built for it."""

from __future__ import annotations

from typing import Any

import pytest

from platoon.rollout.subagent_rewards import (
    add_direct_subagent_delegation_rewards,
    propagate_root_success,
    zero_subagent_rewards,
)
from platoon.rollout.trajectory import ParentInfo, Trajectory, TrajectoryCollection, TrajectoryStep


def agent(key: str, reward: float, *notes: dict[str, float], parent: str | None = None, **misc: Any) -> Trajectory:
    steps = [TrajectoryStep({"reward_misc": dict(note)}) for note in notes or ({},)]
    return Trajectory(key, parent_info=ParentInfo(parent, 0) if parent else None, steps=steps, reward=reward, misc=misc)


def tree(*agents: Trajectory) -> TrajectoryCollection:
    return TrajectoryCollection("c", {one.id: one for one in agents})


def success(trajectory: Trajectory) -> float | None:
    return trajectory.steps[-1].misc["reward_misc"].get("reward/success")  # type: ignore[no-any-return]


def test_children_earn_nothing_when_their_rewards_are_skipped() -> None:
    root = agent("r", 1.0, {"reward/subagent_launched": 1, "reward/subagent_succeeded": 1}, {"reward/success": 1.0})
    child = agent("a", 0.5, {"reward/success": 0.5}, parent="r")
    zero_subagent_rewards(tree(root, child))
    assert (root.reward, child.reward) == (1.0, 0.0)
    assert (success(root), success(child)) == (1.0, 0.0)
    assert root.steps[0].misc["reward_misc"] == {"reward/subagent_launched": 1, "reward/subagent_succeeded": 0.0}


def test_the_roots_success_goes_to_all_but_forced_zeros() -> None:
    root = agent("r", 0.2, {"reward/subagent_launched": 2}, {"reward/success": 0.75})
    child = agent("a", 0.0, parent="r")
    forced = agent("b", 0.0, {"reward/subagent_launched": 3}, parent="r", trajectory_forced_zero_reward=True)
    propagate_root_success(tree(root, child, forced))
    assert [t.reward for t in (root, child, forced)] == [0.75, 0.75, 0.0]
    assert [success(t) for t in (root, child, forced)] == [0.75, 0.75, 0.0]
    assert root.steps[0].misc["reward_misc"]["reward/subagent_succeeded"] == 1.5
    assert forced.steps[0].misc["reward_misc"]["reward/subagent_succeeded"] == 0.0


def test_without_a_note_the_roots_reward_is_its_success() -> None:
    root, child = agent("r", 0.4), agent("a", 0.0, parent="r")
    propagate_root_success(tree(root, child))
    assert child.reward == 0.4


@pytest.mark.parametrize("marker", ["trajectory_invalid", "trajectory_timed_out", "trajectory_cancelled"])
def test_a_root_without_a_score_teaches_its_children_nothing(marker: str) -> None:
    root = agent("r", 0.0)
    root.misc[marker] = True
    child = agent("a", 1.0, {"reward/success": 1.0}, parent="r")
    propagate_root_success(tree(root, child))
    assert child.reward == 1.0
    assert child.misc["exclude_from_policy_training"]


def test_delegation_pays_for_direct_children_once() -> None:
    root = agent("r", 1.0)
    child = agent("a", 0.5, parent="r")
    grandchild = agent("b", 1.0, parent="a")
    excluded = agent("x", 1.0, parent="r", exclude_from_training=True)
    collection = tree(root, child, grandchild, excluded)
    add_direct_subagent_delegation_rewards(collection, 0.1)
    assert root.reward == pytest.approx(1.05)
    assert child.reward == pytest.approx(0.6)
    assert root.misc["subagent_delegation_reward"] == {
        "coefficient": 0.1,
        "launched": 1,
        "succeeded": 0.5,
        "success_rate": 0.5,
        "bonus": 0.05,
    }
    assert "subagent_delegation_reward" not in excluded.misc
    with pytest.raises(ValueError, match="coefficient"):
        add_direct_subagent_delegation_rewards(collection, -1.0)
