"""Rollouts for credit tests, built from token lists."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from platoon.credit import MemberRollout
from platoon.rollout.outcome import Outcome
from platoon.rollout.trajectory import (
    Interaction,
    Interactions,
    ParentInfo,
    Trajectory,
    TrajectoryCollection,
    TrajectoryStep,
)

Calls = Mapping[str, Sequence[tuple[Sequence[int], Sequence[int]]]]


def interaction(
    suffix: Sequence[int], tokens: Sequence[int], *, version: int = 0, continues: str | None = None, **more: Any
) -> Interaction:
    return Interaction(
        suffix_S=np.array(suffix, np.int32),
        tokens_A=np.array(tokens, np.int32),
        logprobs_A=(-np.arange(1, len(tokens) + 1) / 8).astype(np.float32),
        version=version,
        continues=continues,
        **more,
    )


def step(call_id: str | None, **misc: Any) -> TrajectoryStep:
    return TrajectoryStep(misc={"action_misc": {"completion_id": call_id}, **misc})


def trajectory(
    key: str, calls: Sequence[str], reward: float = 0.0, parent: str | None = None, **misc: Any
) -> Trajectory:
    return Trajectory(
        id=key,
        parent_info=None if parent is None else ParentInfo(parent, 0),
        steps=[step(call) for call in calls],
        reward=reward,
        misc=misc,
    )


def member(
    reward: float | None,
    *,
    calls: Calls | None = None,
    child_rewards: Mapping[str, float] | None = None,
    version: int = 0,
    key: str = "reward",
    status: str = "error",
    seconds: float | None = 1.0,
) -> MemberRollout:
    """A rollout whose root is `root` and whose other names in `calls` are its children with outcomes of their own.

    `reward` None gives the non-scored outcome `status`, marked as the trace marks it.
    """
    calls = calls or {"root": [((1, 2, 3), (4, 5))]}
    interactions, collection = Interactions(), TrajectoryCollection(id="c")
    for name, made in calls.items():
        ids = []
        for index, (prompt, tokens) in enumerate(made):
            ids.append(f"{name}-{index}")
            interactions.add(ids[-1], interaction(prompt, tokens, version=version))
        found = trajectory(name, ids, reward or 0.0, None if name == "root" else "root")
        if name != "root":
            found.reward = (child_rewards or {}).get(name, 0.0)
            found.misc["outcome"] = {"status": "scored", "rewards": {"reward": found.reward}}
        elif reward is None:
            found.misc["trajectory_timed_out" if status == "timeout" else "trajectory_invalid"] = True
        collection.trajectories[name] = found
    if reward is None:
        outcome = Outcome.infra("infra", status=status)  # type: ignore[arg-type]
    else:
        outcome = Outcome("scored", {key: reward}, primary=key)
    return MemberRollout(collection, interactions, outcome, "completed", seconds)
