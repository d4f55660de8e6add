"""The numbers of a step and of an evaluation, put together from what their groups brought.

Pure but for two memories: reward keys seen before go on at 0, and the tracker's means of a step. Absent stays absent.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from platoon.config import TrainRun
from platoon.credit import GroupOutput
from platoon.draw.records import Draw
from platoon.draw.traffic import entry_of
from platoon.extensions.boundary import Boundary
from platoon.stats.metrics import (
    Dequeued,
    RewardKeys,
    SubmittedBatch,
    batch_metrics,
    censoring_metrics,
    kind_metrics,
    label_metrics,
    record_completion,
    record_group_stats,
    workload_metrics,
)
from platoon.stats.pool import PoolMetrics
from platoon.stats.store import TaskStatsStore
from platoon.stats.tracker import Tracker
from platoon.train.admitting import AdmissionMetrics
from platoon.train.dispatch import DispatchDriver, Settled
from platoon.train.evaluation import Evaluated
from platoon.train.idle_warning import IdleWarning
from platoon.train.recorded_groups import group_record
from platoon.train.stale_warning import StaleWarning
from platoon.train.step import LoopState, StepWork


@dataclass
class StepMetrics:
    """Metrics of training steps. `prefixes`: label to metric prefix; `batches`: steps of an epoch.

    `cuts`: whether a straggler policy applies to a draw's group.
    """

    config: TrainRun
    store: TaskStatsStore
    driver: DispatchDriver[GroupOutput]
    prefixes: Mapping[str, str]
    batches: int
    cuts: Callable[[Draw], bool] = lambda draw: False
    admission: AdmissionMetrics | None = None
    clock: Callable[[], float] = time.monotonic
    _keys: RewardKeys = field(default_factory=RewardKeys)
    _label_keys: RewardKeys = field(default_factory=RewardKeys)

    def __post_init__(self) -> None:
        self._stale = StaleWarning(self.config.train.max_staleness)
        self.idle = IdleWarning()
        self._tracker = Tracker("train")
        self._pool = PoolMetrics(self.store, self.prefixes)
        self._began = self._logged = self.clock()

    def settled(self, settled: Settled[GroupOutput]) -> None:
        """A group settled now."""
        record_settled(self._tracker, settled, self.cuts)

    def of(self, work: StepWork, state: LoopState) -> dict[str, float]:
        """Everything that is logged for a committed step; keys as users know them."""
        items = [self._item(settled, work) for settled in work.groups]
        submitted = SubmittedBatch(work.datums, work.attention_tokens, work.action_tokens)
        sampled = self.driver.traffic.sampled(self.driver.dispatcher.owed())
        train = measured(
            lambda: batch_metrics(items, self._keys, updates=work.updates),
            lambda: label_metrics(items, self.prefixes, self._label_keys),
            lambda: kind_metrics(items, self.prefixes),
            lambda: self._censoring(work, items),
            lambda: workload_metrics(items, submitted),
            lambda: self._pool.at(state.policy_version),
            self._parked,
            self.driver.blocked_shares,
            lambda: sampled,
            lambda: self._admission(work, items, sampled["sampler/draws"]),
            self.driver.dispatcher.sampling.metrics,
            lambda: self._predicted(work),
        )
        train |= {
            "total_datums_per_batch": work.consumed_datums,
            "update_weights_time": work.seconds.get("publish", 0.0),
            "policy/version": state.policy_version,
            "optim/updates_total": state.optimizer_steps,
            "step": state.train_step,
            "epoch": state.train_step // max(self.batches, 1),
        }
        found = {f"train/{key}": float(value) for key, value in train.items()}
        found |= measured(lambda: self._tracked(work))
        if work.rate is not None:
            found["optim/lr"] = work.rate
        found["progress/done_frac"] = state.train_step / state.end_step
        found |= {f"rollout_client/{key}": value for key, value in self.driver.in_flight().items()}
        found |= {f"timing/{phase}": seconds for phase, seconds in work.seconds.items()}
        now = self.clock()
        found["time/elapsed_seconds"], found["time/step"] = now - self._began, now - self._logged
        self._logged = now
        counted = [item for item in items if item.output is not None and not item.marker]
        self._stale.step(sum(item.stale for item in counted), len(counted), found)
        self.idle.step(state.train_step, work.updates, items)
        return found

    def _tracked(self, work: StepWork) -> dict[str, float]:
        record_step(self._tracker, work)
        return self._tracker.export_and_clear()

    def _admission(self, work: StepWork, items: Sequence[Dequeued], draws: float) -> dict[str, float]:
        if self.admission is None:
            return {}
        return self.admission.of(work.groups, items, counted=work.counted, draws=draws)

    def _censoring(self, work: StepWork, items: Sequence[Dequeued]) -> dict[str, float]:
        """What cutting stragglers cost, over the groups that a policy applies to, and per label."""
        cut = [item for item, settled in zip(items, work.groups, strict=True) if self.cuts(settled.draw)]
        found = censoring_metrics(cut)
        for label, place in self.prefixes.items():
            mine = [item for item in cut if item.output is not None and item.output.label == label]
            found |= {
                key.replace("batch/", f"batch/{place}/", 1): value for key, value in censoring_metrics(mine).items()
            }
        return found

    def _parked(self) -> dict[str, float]:
        """Under limits: draws skipped since the last step, and draws that wait for their label now."""
        if not self.config.train.rollout_group_limits:
            return {}
        skipped, waiting = self.driver.traffic.skipped(), self.driver.dispatcher.waiting()
        found = {"batch/skipped_rows": sum(skipped.values()), "batch/parked_rows": sum(waiting.values())}
        for label, place in self.prefixes.items():
            found[f"batch/{place}/skipped_rows"] = skipped.get(label, 0)
            found[f"batch/{place}/parked_rows"] = waiting.get(label, 0)
        return {key: float(count) for key, count in found.items()}

    def _predicted(self, work: StepWork) -> dict[str, float]:
        """What the scores of the groups that trained promised, and how many were informative, by sampler."""
        scores: dict[str, list[float]] = {}
        informative: dict[str, list[bool]] = {}
        for settled in work.groups:
            score = settled.draw.score
            if score is None or settled.output is None or work.fates.get(settled.key) == "stale":
                continue
            entry = entry_of(settled.draw.sampler)
            place = "sampler" if entry is None else f"sampler/environment/{entry}"
            scores.setdefault(place, []).append(score)
            informative.setdefault(place, []).append(settled.output.verdict == "trained")
        found = {f"{place}/predicted_informative": sum(of) / len(of) for place, of in scores.items()}
        return found | {f"{place}/informative_share": sum(of) / len(of) for place, of in informative.items()}

    def _item(self, settled: Settled[GroupOutput], work: StepWork) -> Dequeued:
        record = group_record(settled, self.store.column)
        stale = work.fates.get(settled.key) == "stale"
        return Dequeued(settled.output, record, stale, settled.marker, threshold=self.store.threshold(record.entry))


def measured(*blocks: Callable[[], Mapping[str, float]]) -> dict[str, float]:
    """What the blocks give together. One that raises is logged and left out: no metric fails a step."""
    found: dict[str, float] = {}
    for block in blocks:
        with Boundary("metrics"):
            found |= block()
    return found


def record_settled(tracker: Tracker, settled: Settled[GroupOutput], cuts: Callable[[Draw], bool]) -> None:
    """What counts in the step that trains when a group settles, not in the one that takes it."""
    if settled.output is None:
        tracker.scalar({"rollout_completion/failed_rollouts": 1.0})
    elif cuts(settled.draw):
        cut = sum(member.disposition == "straggler_killed" for member in settled.output.members)
        tracker.scalar({"straggler_cancelled": float(cut)})


def record_step(tracker: Tracker, work: StepWork) -> None:
    """What was measured once or several times in a step: of its updates, and of each group it took."""
    for key, values in work.metrics.items():
        for value in values:
            tracker.scalar({key: value})
    for settled in work.groups:
        if settled.output is None:
            continue
        record_group_stats(tracker, settled.output)
        record_completion(tracker, settled.output)
        if work.fates.get(settled.key) == "stale":
            tracker.scalar({"stale_rollouts": 1.0})


@dataclass
class EvaluationMetrics:
    """Metrics of evaluations during training. `gauges`: `rollout_client/*` of the evaluation that just ended."""

    prefixes: Mapping[str, str] = field(default_factory=dict)
    gauges: Callable[[], Mapping[str, float]] = dict
    _keys: RewardKeys = field(default_factory=RewardKeys)
    _label_keys: RewardKeys = field(default_factory=RewardKeys)

    def of(self, evaluated: Evaluated) -> dict[str, float]:
        """`eval/*`. `eval/task_reward` is the mean over rollouts with a result; absent when there is none."""
        items = [Dequeued(output) for output in evaluated.outputs]
        tracker = Tracker("eval")
        for output in evaluated.outputs:
            if output is None:
                tracker.scalar({"rollout_completion/failed_rollouts": 1.0})
                continue
            record_group_stats(tracker, output)
            record_completion(tracker, output)
        found = tracker.export_and_clear()
        labelled = label_metrics(items, self.prefixes, self._label_keys)
        places = {f"eval/{key.removeprefix('batch/')}": value for key, value in labelled.items()}
        found |= {key: value for key, value in places.items() if not key.endswith("/stale_groups")}
        found |= {f"eval/rollout_client/{key}": value for key, value in self.gauges().items()}
        mean = found.get("eval/rollout_completion/task_reward/avg")
        if mean is not None:
            found["eval/task_reward"] = mean
        return found | {
            "eval/time": evaluated.seconds,
            "eval/num_tasks": float(evaluated.tasks),
            "eval/step": float(evaluated.due.step),
            "eval/policy_version": float(evaluated.due.version),
        }
