"""Baselines of a group and the advantages they give.

The baseline comes from valid root rewards alone; every datum of a member, subagents included, is centred on it with its
own trajectory's reward. No variance normalisation.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from platoon.credit.datum import Datum
from platoon.credit.rollout import RolloutCredit

BaselineRule = Callable[[Sequence[RolloutCredit]], Sequence[float]]


def group_baselines(rewards: Sequence[float], valid: Sequence[bool], leave_one_out: bool = False) -> list[float]:
    """One baseline a member. Rewards of members that are not valid are never read.

    With R the valid rewards and n their number: mean(R); or, leave-one-out, (sum(R) - r) / (n - 1) for a valid member
    (its own reward when n is 1) and mean(R) for the others. Equal rewards give exactly that reward, so that a uniform
    group has advantages of exactly 0. ValueError without a valid member.
    """
    scored = [float(reward) for reward, counts in zip(rewards, valid, strict=True) if counts]
    if not scored:
        raise ValueError("a baseline needs at least one member with a valid root")
    if min(scored) == max(scored):
        return [scored[0]] * len(rewards)
    total, count = sum(scored), len(scored)
    mean = total / count
    if not leave_one_out:
        return [mean] * len(rewards)
    return [
        (total - float(reward)) / (count - 1) if counts else mean for reward, counts in zip(rewards, valid, strict=True)
    ]


def centred(result: RolloutCredit, baseline: float) -> list[Datum]:
    """The member's datums with advantage `trajectory reward - baseline` on action targets, 0 elsewhere."""
    found: list[Datum] = []
    for trajectory in result.trajectories:
        advantage = np.float32(trajectory.reward - baseline)
        found += [
            replace(datum, advantages_T=np.where(datum.mask_T > 0, advantage, np.float32(0)))
            for datum in trajectory.datums
        ]
    return found


def credit_stats(results: Sequence[RolloutCredit], baselines: Sequence[float]) -> dict[str, float]:
    """`credit/*` of a group, over its valid roots."""
    pairs = [(result.reward, base) for result, base in zip(results, baselines, strict=True) if result.valid]
    used = [base for _, base in pairs]
    return {
        "credit/baseline/avg": sum(used) / len(used),
        "credit/baseline/spread": max(used) - min(used),
        "credit/root_advantage/abs_avg": sum(abs(reward - base) for reward, base in pairs) / len(pairs),
    }
