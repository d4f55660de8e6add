"""One rollout's agent tree to rewards, datums and statistics, before the group's baseline.

Only trajectories with a valid, scored end give datums; the others keep their statistics and are counted as excluded.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from platoon.credit.convert import CallMarks, merge_calls, trajectory_calls
from platoon.credit.datum import Datum
from platoon.credit.errors import error_completions
from platoon.credit.sampling import SubagentSampling, count_sampled
from platoon.credit.workload import recorded_workload
from platoon.rollout.outcome import Outcome
from platoon.rollout.trajectory import Interactions, Trajectory, TrajectoryCollection, TrajectoryStep
from platoon.stats.schema import Workload

RewardProcessor = Callable[[Trajectory], tuple[float, Mapping[str, float]]]
CompletionHook = Callable[[Sequence[TrajectoryStep]], Collection[str]]


@dataclass(frozen=True)
class MemberRollout:
    """One member as the rollout room hands it over. `disposition`: `completed`, or how it was cut or lost."""

    collection: TrajectoryCollection | None
    interactions: Interactions
    outcome: Outcome
    disposition: str = "completed"
    seconds: float | None = None


@dataclass(frozen=True)
class CompletionHooks:
    """Plug-ins that name further error completions, and completions that are only messages."""

    errors: tuple[CompletionHook, ...] = ()
    message_only: tuple[CompletionHook, ...] = ()


@dataclass(frozen=True)
class ConversionSettings:
    """How a group's rollouts become datums."""

    task_id: str
    processor: RewardProcessor
    sampling: SubagentSampling
    hooks: CompletionHooks
    track_errors: bool
    filter_message_actions: bool


@dataclass(frozen=True)
class TrajectoryCredit:
    """A kept trajectory: reward, datums after sampling, counts (`prefix_breaks`: prompts that started anew)."""

    id: str
    reward: float
    components: Mapping[str, float]
    is_root: bool
    depth: int
    datums: list[Datum]
    steps: int
    input_tokens: int
    output_tokens: int
    tool_calls: int
    recovered_tool_calls: int
    unparsed_tool_calls: int
    prefix_breaks: int


@dataclass(frozen=True)
class RolloutCredit:
    """A rollout that has a result: the root's reward, and whether that reward is a valid measurement."""

    reward: float
    valid: bool
    trajectories: list[TrajectoryCredit]

    @property
    def root(self) -> TrajectoryCredit:
        return self.trajectories[0]

    @property
    def datums(self) -> list[Datum]:
        return [datum for trajectory in self.trajectories for datum in trajectory.datums]


@dataclass(frozen=True)
class Conversion:
    """What became of one member. `result` is None unless `status` is `completed`."""

    status: str
    result: RolloutCredit | None
    workload: Workload
    observed: bool
    sampled: Counter[str] = field(default_factory=Counter)


def trajectory_reward(trajectory: Trajectory) -> tuple[float, Mapping[str, float]]:
    """The default reward processor: the trajectory's own reward, no components."""
    return trajectory.reward, {}


def convert_rollout(member: MemberRollout, settings: ConversionSettings) -> Conversion:
    """Turn one member's record into credit. Errors of the reward processor propagate: the group then fails."""
    collection = member.collection
    if member.disposition != "completed":
        observed = collection is not None and bool(collection.trajectories) and member.disposition == "error"
        workload = recorded_workload(collection, member.interactions) if observed else Workload()
        return Conversion(member.disposition, None, workload, observed)
    if collection is None or not collection.trajectories:
        return Conversion("no_trajectories", None, Workload(), False)
    kept = {key: t for key, t in collection.trajectories.items() if not _outside_training(t)}
    rewards = {key: settings.processor(trajectory) for key, trajectory in kept.items()}
    if any(not math.isfinite(reward) for reward, _ in rewards.values()):
        return Conversion("error", None, recorded_workload(collection, member.interactions), True)
    depths, sampled = collection.depths(), Counter[str]()
    credits: list[TrajectoryCredit] = []
    merged_datums = eligible_datums = 0
    for index, (key, trajectory) in enumerate(kept.items()):
        credit = _convert_trajectory(trajectory, member.interactions, settings, rewards[key], depths[key])
        merged_datums += len(credit.datums)
        if policy_excluded(trajectory, is_root=trajectory is collection.root, outcome=member.outcome):
            credit = replace(credit, datums=[])
        eligible_datums += len(credit.datums)
        credits.append(replace(credit, is_root=index == 0, datums=_sample(credit, settings, sampled)))
    kept_datums = sum(len(credit.datums) for credit in credits)
    workload = recorded_workload(collection, member.interactions, (merged_datums, eligible_datums, kept_datums))
    explained = settings.sampling.probability < 1.0 or eligible_datums < merged_datums
    if not credits or merged_datums == 0 or (kept_datums == 0 and not explained):
        return Conversion("conversion_empty", None, workload, True, sampled)
    valid = member.outcome.trainable and not interrupted(collection.root)
    return Conversion("completed", RolloutCredit(credits[0].reward, valid, credits), workload, True, sampled)


def interrupted(trajectory: Trajectory) -> bool:
    """Cancelled, timed out or invalid, by its markers or by the error texts that older records hold."""
    text = trajectory.error_message or ""
    cancelled = "CancelledError" in text or "Episode cancelled" in text
    timed_out = "Episode timed out" in text or "\nTimeoutError:" in text
    return trajectory.interrupted or cancelled or timed_out


def policy_excluded(trajectory: Trajectory, *, is_root: bool, outcome: Outcome) -> bool:
    """True when the trajectory's tokens must not train: no valid scored end, or a child kept out on purpose.

    A trajectory with an outcome record of its own is judged by that one, any other by the episode's.
    """
    if interrupted(trajectory) or (not is_root and trajectory.misc.get("exclude_from_policy_training")):
        return True
    own = None if is_root else trajectory.misc.get("outcome")
    status = own.get("status") if isinstance(own, Mapping) else outcome.status
    return bool(status != "scored")


def _outside_training(trajectory: Trajectory) -> bool:
    task_misc = trajectory.task.misc if trajectory.task is not None else {}
    return bool(trajectory.misc.get("exclude_from_training") or task_misc.get("subagent_reward_verifier_task"))


def _convert_trajectory(
    trajectory: Trajectory,
    interactions: Interactions,
    settings: ConversionSettings,
    rewarded: tuple[float, Mapping[str, float]],
    depth: int,
) -> TrajectoryCredit:
    reward, components = rewarded
    calls = trajectory_calls(trajectory.steps, interactions)
    merged = merge_calls(calls, interactions, _marks(trajectory, settings), depth=depth, reward=reward)
    generations = [g for g in trajectory.misc.get("model_generations", {}).values() if isinstance(g, Mapping)]
    return TrajectoryCredit(
        id=trajectory.id,
        reward=reward,
        components=components,
        is_root=False,
        depth=depth,
        datums=merged.datums,
        steps=len(calls),
        input_tokens=sum(interactions.prompt_length(call_id) for call_id in calls),
        output_tokens=sum(len(interactions[call_id].tokens_A) for call_id in calls),
        tool_calls=_total(generations, "parsed_tool_calls"),
        recovered_tool_calls=_total(generations, "recovered_tool_calls"),
        unparsed_tool_calls=_total(generations, "unparsed_tool_calls"),
        prefix_breaks=merged.prefix_breaks,
    )


def _marks(trajectory: Trajectory, settings: ConversionSettings) -> CallMarks:
    errors: set[str] = set()
    messages: set[str] = set()
    if settings.track_errors:
        errors.update(error_completions(trajectory.steps))
        errors.update(*(hook(trajectory.steps) for hook in settings.hooks.errors))
    if settings.filter_message_actions:
        messages.update(*(hook(trajectory.steps) for hook in settings.hooks.message_only))
    return CallMarks(frozenset(errors), frozenset(messages), settings.track_errors)


def _sample(credit: TrajectoryCredit, settings: ConversionSettings, sampled: Counter[str]) -> list[Datum]:
    """Thin a trajectory's datums and mark the first kept one that has actions."""
    kept: list[Datum] = []
    started = False
    for index, datum in enumerate(credit.datums):
        keep = settings.sampling.keeps(settings.task_id, credit.id, credit.depth, index)
        if settings.sampling.probability < 1.0:
            count_sampled(sampled, datum, kept=keep)
        if keep:
            first = not started and datum.action_tokens > 0
            started = started or first
            kept.append(replace(datum, traj_start=1.0) if first else datum)
    return kept


def _total(generations: Sequence[Mapping[str, Any]], key: str) -> int:
    return sum(int(generation.get(key) or 0) for generation in generations)
