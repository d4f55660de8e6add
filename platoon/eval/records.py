"""One evaluation rollout as it is judged: from a dumped trajectory collection to a verdict.

A rollout that did not end in a valid score is errored, with the reason; it has no reward and no verdict, and is never
counted as a failure of the policy. Nothing here reads or writes files.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from platoon.credit.processors import ProcessorFn
from platoon.extensions.boundary import Boundary

USAGE_KEYS = ("calls", "prompt_tokens", "completion_tokens")
BUCKETS = ("policy", "aux", "judge", "verifier")
MARKERS = {
    "trajectory_cancelled": "cancelled",
    "trajectory_timed_out": "timeout",
    "trajectory_invalid": "invalid",
}
JUDGE_ROLES = ("verifier", "judge")


@dataclass(frozen=True)
class Judging:
    """What turns a trajectory into a verdict. `processors`: reward processors by what ids of their tasks begin with, ""
    for all of them."""

    success_threshold: float = 1.0
    count_timeout_as_failure: bool = False
    processors: Mapping[str, ProcessorFn] = field(default_factory=dict)

    def process(self, task_id: str, root: Mapping[str, Any]) -> tuple[float, Mapping[str, float]]:
        """(reward, components) of a root trajectory, by its entry's processor; without one its own reward."""
        mixed, divider, _ = task_id.partition("::")
        processor = self.processors.get(mixed + divider, self.processors.get(""))
        return (float(root["reward"]), {}) if processor is None else processor(root)


@dataclass(frozen=True)
class RolloutRecord:
    """One rollout. Valid when `error` is None; `success` and `reward` are None otherwise."""

    task_id: str
    rollout_index: int
    success: bool | None
    reward: float | None
    error: str | None
    outcome_status: str | None
    reward_key: str | None = None
    failure_kind: str | None = None
    reward_components: Mapping[str, float] = field(default_factory=dict)
    wall_time_seconds: float = 0.0
    num_steps_total: int = 0
    num_steps_root: int = 0
    num_steps_subtrajectories: int = 0
    num_subtrajectories: int = 0
    subtrajectory_depth_counts: Mapping[str, int] = field(default_factory=dict)
    subtrajectory_depth_steps: Mapping[str, int] = field(default_factory=dict)
    failed_calls: int = 0
    judges: Mapping[str, int] = field(default_factory=dict)
    usage: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    cost: Mapping[str, float | int | None] = field(default_factory=dict)
    source_path: str | None = None

    @property
    def valid(self) -> bool:
        return self.error is None

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class Kept:
    """What a rollout's metadata says of it."""

    task_id: str
    rollout_index: int
    wall_time_seconds: float = 0.0
    source_path: str | None = None


def failed(kept: Kept, error: str, status: str | None = None, failure_kind: str | None = None) -> RolloutRecord:
    """A rollout that left no trajectory to judge."""
    return RolloutRecord(
        kept.task_id,
        kept.rollout_index,
        None,
        None,
        error,
        status,
        failure_kind=failure_kind,
        wall_time_seconds=kept.wall_time_seconds,
    )


def judge(collection: Mapping[str, Any], kept: Kept, judging: Judging) -> RolloutRecord:
    """The verdict on a dumped collection. One of another shape raises LookupError, TypeError or ValueError."""
    trajectories = collection["trajectories"]
    root = _root(trajectories)
    outcome = root["misc"].get("outcome") or {}
    status = outcome_status(root)
    failed_calls = sum(int(t["misc"].get("gateway_errors") or 0) for t in trajectories.values())
    error = _error(trajectories, status, failed_calls, judging)
    reward, components = 0.0, dict[str, float]()
    if error is None:
        with Boundary("reward processor") as caught:
            reward, components = _finite(*judging.process(kept.task_id, root))
        error = f"reward_processor: {caught.text}" if caught.error is not None else None
    depths = subtrajectory_depths(trajectories)
    steps: Counter[str] = Counter()
    for key, depth in depths.items():
        steps[str(depth)] += len(trajectories[key]["steps"])
    return RolloutRecord(
        task_id=kept.task_id,
        rollout_index=kept.rollout_index,
        success=None if error else _success(root, reward, status, judging),
        reward=None if error else reward,
        error=error,
        outcome_status=status,
        reward_key=outcome.get("reward_key"),
        failure_kind=outcome.get("failure_kind"),
        reward_components=components,
        wall_time_seconds=kept.wall_time_seconds,
        num_steps_total=len(root["steps"]) + steps.total(),
        num_steps_root=len(root["steps"]),
        num_steps_subtrajectories=steps.total(),
        num_subtrajectories=len(depths),
        subtrajectory_depth_counts=dict(sorted(Counter(map(str, depths.values())).items(), key=_by_depth)),
        subtrajectory_depth_steps=dict(sorted(steps.items(), key=_by_depth)),
        failed_calls=failed_calls,
        judges=_judges(trajectories),
        usage=usage_of(trajectories),
        cost=cost_of(trajectories),
        source_path=kept.source_path,
    )


def outcome_status(root: Mapping[str, Any]) -> str | None:
    """How a rollout ended: its outcome's status, else what its markers say; None when neither says anything."""
    status = (root["misc"].get("outcome") or {}).get("status")
    if isinstance(status, str):
        return status
    return next((status for marker, status in MARKERS.items() if root["misc"].get(marker)), None)


def _root(trajectories: Mapping[str, Any]) -> Mapping[str, Any]:
    for trajectory in trajectories.values():
        found: Mapping[str, Any] = trajectory
        return found
    raise ValueError("it has no trajectory")


def _error(trajectories: Mapping[str, Any], status: str | None, failed_calls: int, judging: Judging) -> str | None:
    """Why a rollout is no measurement of the policy; None when it is one."""
    root = _root(trajectories)
    timed_out = status == "timeout" and judging.count_timeout_as_failure
    if status not in (None, "scored") and not timed_out:
        return str(root.get("error_message") or status)
    refused = sum(int((t["misc"].get("judges_refused") or {}).get("count") or 0) for t in trajectories.values())
    if refused:
        return f"judges_off: {refused} judge calls were refused"
    if failed_calls:
        return f"backend_unavailable: {failed_calls} model calls failed"
    return None


def _finite(reward: float, components: Mapping[str, float]) -> tuple[float, dict[str, float]]:
    if not math.isfinite(reward):
        raise ValueError(f"the reward is {reward}")
    return reward, dict(components)


def _success(root: Mapping[str, Any], reward: float, status: str | None, judging: Judging) -> bool:
    """By the environment's own score: the last step's flag, else the processed reward."""
    if status not in (None, "scored"):
        return False
    rewards = (root["steps"][-1]["misc"].get("reward_misc") or {}) if root["steps"] else {}
    flag = rewards.get("reward/success", rewards.get("success"))
    if flag is None:
        return reward >= judging.success_threshold
    traced = status is not None
    return float(flag) >= (judging.success_threshold if traced else 1.0)


def judging_agent(trajectory: Mapping[str, Any]) -> bool:
    """Whether a trajectory is of an agent that judges others."""
    return (trajectory["misc"].get("agent") or {}).get("role") in JUDGE_ROLES


def subtrajectory_depths(trajectories: Mapping[str, Any]) -> dict[str, int]:
    """Distance from the root (from 1) of each trajectory below it, without those of judges."""
    keys = list(trajectories)
    found: dict[str, int] = {}

    def depth(key: str, seen: frozenset[str]) -> int:
        parent = (trajectories[key].get("parent_info") or {}).get("id")
        if not isinstance(parent, str) or parent not in trajectories or parent in seen:
            return 0
        return depth(parent, seen | {key}) + 1

    for key in keys[1:]:
        if not judging_agent(trajectories[key]):
            found[key] = depth(key, frozenset({key}))
    return found


def _by_depth(item: tuple[str, int]) -> int:
    return int(item[0])


def _judges(trajectories: Mapping[str, Any]) -> dict[str, int]:
    judging = [t for t in list(trajectories.values())[1:] if judging_agent(t)]
    return {
        "verifier_agents": len(judging),
        "verifier_steps": sum(len(t["steps"]) for t in judging),
        "judge_calls": sum(len(t["misc"].get("judge_calls") or ()) for t in trajectories.values()),
    }


def usage_of(trajectories: Mapping[str, Any]) -> dict[str, dict[str, int]]:
    """Calls and tokens by bucket (`policy`, `aux`, `judge`, `verifier`)."""
    buckets = {name: dict.fromkeys(USAGE_KEYS, 0) for name in BUCKETS}
    for trajectory in trajectories.values():
        for kind, call in calls_of(trajectory):
            usage = call.get("usage") or {}
            buckets[kind]["calls"] += 1
            for key in USAGE_KEYS[1:]:
                buckets[kind][key] += int(usage.get(key) or 0)
    return buckets


def cost_of(trajectories: Mapping[str, Any]) -> dict[str, float | int | None]:
    """Dollars of the calls that have a price (None when none has), and how many calls of hosted models have none."""
    calls = [call for trajectory in trajectories.values() for _, call in calls_of(trajectory)]
    priced = [float(call["cost_usd"]) for call in calls if call.get("cost_usd") is not None]
    unpriced = sum("dialect" in call and call.get("cost_usd") is None for call in calls)
    return {"usd": math.fsum(priced) if priced else None, "unpriced_calls": unpriced}


def calls_of(trajectory: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """A trajectory's model calls as (bucket, the call's record), its steps first."""
    verifies = judging_agent(trajectory)
    for step in trajectory["steps"]:
        action = step["misc"].get("action_misc")
        if isinstance(action, Mapping):
            kind = action.get("kind")
            own = kind if kind in BUCKETS else "policy"
            yield "verifier" if verifies and kind != "judge" else str(own), action
    for call in trajectory["misc"].get("judge_calls") or ():
        yield "judge", call
