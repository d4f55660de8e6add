"""Rewards over the agent tree, on a rollout's built trajectories: what children get from the root, and it from them.

Finalizers of a program. They change rewards and notes in place, never tokens. A root without a scored outcome gives its
children nothing to learn from: no failure becomes a reward of 0.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from platoon.rollout.trajectory import Trajectory, TrajectoryCollection

SUCCESS = "reward/success"
LAUNCHED = "reward/subagent_launched"
SUCCEEDED = "reward/subagent_succeeded"
FORCED_ZERO = "trajectory_forced_zero_reward"


def zero_subagent_rewards(collection: TrajectoryCollection) -> None:
    """Children earn nothing: reward and success 0 for each, and no step counts a succeeded subagent."""
    for trajectory in collection.trajectories.values():
        for notes in _notes(trajectory):
            if SUCCEEDED in notes:
                notes[SUCCEEDED] = 0.0
        if trajectory is not collection.root:
            _reward(trajectory, 0.0)


def propagate_root_success(collection: TrajectoryCollection) -> None:
    """Every trajectory earns the root's success; one that is forced to zero earns 0.

    The success is the root's last `reward/success`, else its reward. Steps that launched subagents count as many
    succeeded ones times their trajectory's value. When the root has no scored outcome, its children do not train.
    """
    root = collection.root
    success = base_success(root)
    for trajectory in collection.trajectories.values():
        if root.interrupted:
            if trajectory is not root:
                trajectory.misc["exclude_from_policy_training"] = True
            continue
        value = 0.0 if trajectory.misc.get(FORCED_ZERO) else success
        _reward(trajectory, value)
        for notes in _notes(trajectory):
            launched = _number(notes.get(LAUNCHED))
            if launched is not None and launched > 0:
                notes[SUCCEEDED] = launched * value


def base_success(trajectory: Trajectory) -> float:
    """The `reward/success` of its last step, else its reward; 0 when it is forced to zero."""
    if trajectory.misc.get(FORCED_ZERO):
        return 0.0
    noted = None
    if trajectory.steps:
        noted = _number((trajectory.steps[-1].misc.get("reward_misc") or {}).get(SUCCESS))
    return trajectory.reward if noted is None else noted


def add_direct_subagent_delegation_rewards(collection: TrajectoryCollection, coefficient: float) -> None:
    """Pay a trajectory for the success of its direct children: coefficient times their mean success.

    Adds to the reward, and notes `misc.subagent_delegation_reward`. Bonuses of children do not count as their success.
    ValueError for a coefficient below 0 or not finite.
    """
    if not math.isfinite(coefficient) or coefficient < 0:
        raise ValueError(f"the coefficient of delegation rewards must be a finite number of at least 0: {coefficient}")
    counted = {k: t for k, t in collection.trajectories.items() if not t.misc.get("exclude_from_training")}
    success = {key: base_success(trajectory) for key, trajectory in counted.items()}
    for key, trajectory in counted.items():
        children = [k for k, t in counted.items() if t.parent_info is not None and t.parent_info.id == key]
        succeeded = sum(success[child] for child in children)
        rate = succeeded / len(children) if children else 0.0
        bonus = 0.0 if trajectory.misc.get(FORCED_ZERO) else coefficient * rate
        trajectory.misc["subagent_delegation_reward"] = {
            "coefficient": coefficient,
            "launched": len(children),
            "succeeded": succeeded,
            "success_rate": rate,
            "bonus": bonus,
        }
        trajectory.reward += bonus


def _reward(trajectory: Trajectory, value: float) -> None:
    trajectory.reward = value
    if trajectory.steps:
        trajectory.steps[-1].misc.setdefault("reward_misc", {})[SUCCESS] = value


def _notes(trajectory: Trajectory) -> Iterator[dict[str, Any]]:
    for step in trajectory.steps:
        notes = step.misc.get("reward_misc")
        if isinstance(notes, dict):
            yield notes


def _number(value: Any) -> float | None:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None
