"""What statistics keep of each member, read before any datum is filtered."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from typing import Any

from platoon.credit.rollout import Conversion, MemberRollout, RolloutCredit, interrupted
from platoon.rollout.outcome import OUTCOME_STATUSES
from platoon.rollout.trajectory import TrajectoryCollection
from platoon.stats.schema import MemberResult, RolloutStats


def member_result(member: MemberRollout, conversion: Conversion) -> MemberResult:
    """One member's record.

    A scored rollout that made no model call (its prompt did not fit, say) has nothing to train but is a valid
    measurement: it stays in the denominator of pass rates. No other member without a result has a reward.
    """
    result, outcome = conversion.result, member.outcome
    root = _root(member.collection)
    measured = conversion.status == "conversion_empty" and outcome.trainable and root is not None
    valid = result.valid if result is not None else measured and root is not None and not interrupted(root)
    reward = result.reward if result is not None else outcome.reward if valid else None
    scored = None
    if outcome.trainable:
        scored = _success(member.collection)
        if scored is None and valid:
            scored = reward
    versions: dict[str, list[int]] = {}
    for datum in result.datums if result is not None else ():
        versions.setdefault(datum.policy, []).append(datum.version)
    return MemberResult(
        reward=reward,
        scored=scored,
        valid=valid,
        outcome=outcome.status,
        disposition=conversion.status,
        reward_key=outcome.reward_key,
        steps=result.root.steps if result is not None else None,
        output_tokens=result.root.output_tokens if result is not None else None,
        seconds=member.seconds,
        versions={policy: (min(found), max(found)) for policy, found in versions.items()},
    )


def rollout_stats(
    conversions: Sequence[Conversion], members: Sequence[MemberResult], seconds: float | None
) -> RolloutStats:
    """Values per rollout and per trajectory with a result, and counts over all members.

    `task_reward` holds valid roots only: a failure has no reward. `seconds` is the group's wall time.
    """
    values: dict[str, list[float]] = {}
    results = [c.result for c in conversions if c.result is not None]
    for result in results:
        _add_rollout(values, result)
    for key in [k for k in values if k == "task_reward" or k.startswith("root_")]:
        found = values[key]
        values[f"{key}_at_k_mean"] = [sum(found) / len(found)]
        values[f"{key}_at_k_min"], values[f"{key}_at_k_max"] = [min(found)], [max(found)]
    if seconds is not None:
        values["rollout_time"] = [seconds]
    outcomes = Counter(m.outcome for m in members)
    keys = Counter(m.reward_key for m in members if m.reward_key is not None)
    counts = {f"outcome/{status}": outcomes[status] for status in (*OUTCOME_STATUSES, "none")}
    counts |= {f"reward_key/{key.replace('/', '--')}": number for key, number in keys.items()}
    counts["reward_key_mismatch"] = int(len(keys) > 1)
    return RolloutStats({key: tuple(found) for key, found in values.items()}, counts)


def _add_rollout(values: dict[str, list[float]], result: RolloutCredit) -> None:
    def add(key: str, value: float) -> None:
        values.setdefault(key, []).append(float(value))

    if result.valid:
        add("task_reward", result.reward)
        for name, value in result.root.components.items():
            add(f"root_{name.removeprefix('reward/')}", value)
    add("task_reward_valid", float(result.valid))
    for trajectory in result.trajectories:
        steps = max(trajectory.steps, 1)
        add("num_steps", trajectory.steps)
        add("num_input_tokens", trajectory.input_tokens)
        add("num_output_tokens", trajectory.output_tokens)
        add("num_tool_calls", trajectory.tool_calls)
        add("num_recovered_tool_calls", trajectory.recovered_tool_calls)
        add("num_unparsed_tool_calls", trajectory.unparsed_tool_calls)
        add("avg_input_tokens_per_step", trajectory.input_tokens / steps)
        add("avg_output_tokens_per_step", trajectory.output_tokens / steps)
        add("prefix_breaks", trajectory.prefix_breaks)
        for name, value in trajectory.components.items():
            add(f"reward/{name.removeprefix('reward/')}", value)


def _root(collection: TrajectoryCollection | None) -> Any:
    return collection.root if collection is not None and collection.trajectories else None


def _success(collection: TrajectoryCollection | None) -> float | None:
    """The environment's own score on the root's last step, when it is a finite number."""
    root = _root(collection)
    if root is None or not root.steps:
        return None
    rewards = root.steps[-1].misc.get("reward_misc") or {}
    for key in ("reward/success", "success"):
        value = rewards.get(key)
        if isinstance(value, int | float) and math.isfinite(value):
            return float(value)
    return None
