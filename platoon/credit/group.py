"""Credit of one group: its members' rollouts in, datums with advantages, verdict and statistics out.

Pure: no clock, no randomness but the seeded subagent thinning. Non-scored members never reach a baseline.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import reduce
from operator import add
from typing import TYPE_CHECKING

from platoon.credit.baselines import BaselineRule, centred, credit_stats, group_baselines
from platoon.credit.datum import Datum
from platoon.credit.filters import error_stats, filter_error_tokens
from platoon.credit.members import member_result, rollout_stats
from platoon.credit.rollout import (
    CompletionHooks,
    Conversion,
    ConversionSettings,
    MemberRollout,
    RewardProcessor,
    RolloutCredit,
    convert_rollout,
    trajectory_reward,
)
from platoon.credit.sampling import SubagentSampling, sampling_stats
from platoon.stats.schema import MemberResult, RolloutStats, Workload

if TYPE_CHECKING:
    from platoon.config import WorkflowConfig


@dataclass(frozen=True)
class CreditSettings:
    """How a group is credited. `min_successful_group_size`: valid roots it needs to train."""

    group_size: int = 8
    leave_one_out_baseline: bool = False
    filter_errors: bool = True
    filter_message_actions: bool = False
    min_successful_group_size: int = 1
    subagent_datum_keep_probability: float = 1.0
    subagent_datum_sampling_seed: int = 0

    @classmethod
    def from_workflow(cls, config: WorkflowConfig) -> CreditSettings:
        """The effective settings of one entry."""
        return cls(**{one.name: getattr(config, one.name) for one in fields(cls)})


@dataclass(frozen=True)
class GroupOutput:
    """What a settled group brings to a training step.

    `trainable_rollouts`: members whose kept datums have a nonzero advantage. `task_retained_datums`: kept datums.
    `group_stats`: scalars that step metrics average over groups. `rollout_workloads`: one per observed member.
    """

    datums: list[Datum]
    verdict: str
    members: tuple[MemberResult, ...] = ()
    workload: Workload = field(default_factory=Workload)
    requested_rollouts: int = 0
    observed_rollouts: int = 0
    trainable_rollouts: int = 0
    task_retained_datums: int = 0
    rollout_stats: RolloutStats = field(default_factory=RolloutStats)
    group_stats: Mapping[str, float] = field(default_factory=dict)
    label: str | None = None
    entry: str | None = None
    rollout_workloads: tuple[Workload, ...] = ()

    def __post_init__(self) -> None:
        if self.task_retained_datums > self.workload.post_sampling_datums:
            raise ValueError(
                f"group keeps {self.task_retained_datums} datums of the {self.workload.post_sampling_datums} it made"
            )


@dataclass(frozen=True)
class CreditPlugins:
    """Code of the user that credit calls. An exception from it propagates: the group then counts as failed."""

    processor: RewardProcessor = trajectory_reward
    baselines: BaselineRule | None = None
    hooks: CompletionHooks = field(default_factory=CompletionHooks)


@dataclass(frozen=True)
class _Trained:
    verdict: str
    datums: list[Datum]
    trainable: int
    stats: Mapping[str, float]


def credit_group(
    members: Sequence[MemberRollout],
    settings: CreditSettings,
    *,
    task_id: str,
    label: str | None = None,
    entry: str | None = None,
    processor: RewardProcessor | None = None,
    plugins: CreditPlugins | None = None,
    seconds: float | None = None,
) -> GroupOutput:
    """Credit a group. `seconds`: the group's wall time, by default the longest member's."""
    plugins = plugins or CreditPlugins(processor=processor or trajectory_reward)
    conversion_settings = ConversionSettings(
        task_id=task_id,
        processor=plugins.processor,
        sampling=SubagentSampling(settings.subagent_datum_keep_probability, settings.subagent_datum_sampling_seed),
        hooks=plugins.hooks,
        track_errors=settings.filter_errors,
        filter_message_actions=settings.filter_message_actions,
    )
    conversions = [convert_rollout(member, conversion_settings) for member in members]
    results = tuple(member_result(m, c) for m, c in zip(members, conversions, strict=True))
    trained = _train(conversions, results, settings, _baseline_rule(plugins, settings))
    if seconds is None:
        seconds = max((m.seconds for m in members if m.seconds is not None), default=None)
    sampled = reduce(add, (c.sampled for c in conversions), Counter[str]())
    return GroupOutput(
        datums=trained.datums,
        verdict=trained.verdict,
        members=results,
        workload=reduce(add, (c.workload for c in conversions), Workload()),
        requested_rollouts=len(members),
        observed_rollouts=sum(c.observed for c in conversions),
        trainable_rollouts=trained.trainable,
        task_retained_datums=len(trained.datums),
        rollout_stats=rollout_stats(conversions, results, seconds),
        group_stats={**trained.stats, **sampling_stats(sampled)},
        label=label,
        entry=entry,
        rollout_workloads=tuple(c.workload for c in conversions if c.observed),
    )


def _baseline_rule(plugins: CreditPlugins, settings: CreditSettings) -> BaselineRule:
    def default(results: Sequence[RolloutCredit]) -> list[float]:
        rewards, valid = [r.reward for r in results], [r.valid for r in results]
        return group_baselines(rewards, valid, settings.leave_one_out_baseline)

    return plugins.baselines or default


def _train(
    conversions: Sequence[Conversion],
    members: Sequence[MemberResult],
    settings: CreditSettings,
    baseline_rule: Callable[[Sequence[RolloutCredit]], Sequence[float]],
) -> _Trained:
    """Verdict and kept datums, in the fixed order of checks."""
    results = [c.result for c in conversions if c.result is not None]
    refused = _refusal(results, members, settings)
    if refused is not None:
        return _Trained(refused, [], 0, {"group_size_rejected": 1.0} if refused == "below_min" else {})
    baselines = baseline_rule(results)
    stats = credit_stats(results, baselines)
    counts = Counter[str]()
    kept = [filter_error_tokens(centred(r, b), counts) for r, b in zip(results, baselines, strict=True)]
    stats |= error_stats(counts)
    datums = [datum for member in kept for datum in member]
    if not datums:
        return _Trained("no_datums", [], 0, stats)
    trainable = sum(any(datum.has_signal for datum in member) for member in kept)
    return _Trained("trained" if trainable else "uniform", datums, trainable, stats)


def _refusal(results: Sequence[RolloutCredit], members: Sequence[MemberResult], settings: CreditSettings) -> str | None:
    """Why the group trains nothing, before any credit."""
    if len({m.reward_key for m in members if m.reward_key is not None}) > 1:
        return "reward_key_mismatch"
    if not results:
        return "no_results"
    valid = sum(result.valid for result in results)
    if settings.min_successful_group_size > 1 and valid < settings.min_successful_group_size:
        return "below_min"
    if not valid:
        return "no_completed_root"
    return None if any(result.datums for result in results) else "no_datums"
