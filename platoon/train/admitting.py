"""Admission in a run: the gate built from its config, what becomes of a rejected group, and a step's numbers.

A rejected group's datums are let go at once; its statistics go on to the step that takes its marker.
"""

from __future__ import annotations

import dataclasses
import logging
from collections import Counter
from collections.abc import Callable, Mapping, Sequence

from platoon.config import TrainRun
from platoon.credit import GroupOutput
from platoon.credit.loss import zero_at_zero_advantages
from platoon.draw.admission.gate import AdmissionGate, AdmissionSettings, EntryRule, Ruling
from platoon.draw.traffic import ReasonKeys
from platoon.stats.metrics import Dequeued
from platoon.train.dispatch import Settled
from platoon.train.recorded_groups import group_record

log = logging.getLogger("platoon.train")


def admission_settings(config: TrainRun) -> AdmissionSettings:
    """What the config says about admission."""
    own = {
        entry.label: EntryRule(entry.group_admission, dict(entry.group_admission_options))
        for entry in config.environments
        if entry.group_admission is not None
    }
    train = config.train
    return AdmissionSettings(
        train.group_admission, dict(train.group_admission_options), own, train.refill.max_groups_per_step
    )


def rule_mode(config: TrainRun) -> bool:
    """Some group may be turned away."""
    return admission_settings(config).active(tuple(entry.label for entry in config.environments))


def admission_warnings(config: TrainRun) -> list[str]:
    """A rule that turns away groups which the loss would learn from."""
    train = config.train
    if not rule_mode(config) or zero_at_zero_advantages(train.loss_fn, train.loss_fn_config):
        return []
    return [
        f"train.group_admission: the loss {train.loss_fn} is not zero at zero advantages, so that groups a rule "
        "turns away would have trained"
    ]


def admission_lines(config: TrainRun) -> list[str]:
    """The rules, for the sampling plan; nothing when every group is admitted."""
    if not rule_mode(config):
        return []
    settings = admission_settings(config)
    rules = ", ".join(f"{entry.label}: {settings.of(entry.label).rule}" for entry in config.environments)
    return [f"  group admission (experimental): {rules}; at most {config.train.groups_per_step_cap} groups a step"]


def admit_hook(gate: AdmissionGate, column: str) -> Callable[[Settled[GroupOutput]], Ruling | None]:
    """What the driver asks for each settled group."""
    return lambda settled: gate.decide(group_record(settled, column), failed=settled.output is None)


def emptied(output: GroupOutput) -> tuple[GroupOutput, bool]:
    """A rejected group's output without its datums, and whether it had any."""
    return dataclasses.replace(output, datums=[]), bool(output.datums)


class AdmissionMetrics:
    """`admission/*` of steps, and the first short and the first empty step in the log."""

    def __init__(self, gate: AdmissionGate, batch_size: int, prefixes: Mapping[str, str]) -> None:
        self._gate, self._batch_size, self._prefixes = gate, batch_size, prefixes
        self._keys: dict[str, ReasonKeys] = {}
        self._said: set[str] = set()

    def of(
        self, taken: Sequence[Settled[GroupOutput]], items: Sequence[Dequeued], *, counted: int, draws: float
    ) -> dict[str, float]:
        """A step's numbers. `counted`: groups that counted against its cap; `draws`: made since the last step."""
        pairs = list(zip(taken, items, strict=True))
        found = self._counts(pairs, "admission/", zero=False)
        admitted = found.pop("admission/admitted")
        found["admission/groups_admitted"] = admitted
        found["admission/counted"] = float(counted)
        found["admission/short"] = float(admitted < self._batch_size)
        found["admission/errors"] = float(self._gate.take_errors())
        if admitted:
            found["admission/draws_per_admitted"] = draws / admitted
        for label, place in self._prefixes.items():
            mine = [pair for pair in pairs if pair[0].draw.label == label]
            found |= self._counts(mine, f"admission/{place}/", zero=True)
        self._warn(int(admitted), found)
        return found

    def _counts(
        self, pairs: Sequence[tuple[Settled[GroupOutput], Dequeued]], prefix: str, *, zero: bool
    ) -> dict[str, float]:
        counts: Counter[str] = Counter(dict.fromkeys(("admitted", "rejected", "stale", "failed"), 0))
        verdicts = [settled.output.verdict for settled, _ in pairs if settled.output is not None]
        for settled, item in pairs:
            kind = self._kind(settled, item)
            counts[kind] += 1
            if kind in ("admitted", "rejected") and settled.ruling is not None and settled.ruling.reason != kind:
                keys = self._keys.setdefault(settled.ruling.rule, ReasonKeys())
                counts[f"{kind}/{keys.key(settled.ruling.reason)}"] += 1
        found = {prefix + key: float(count) for key, count in counts.items()}
        if verdicts or zero:
            found[prefix + "informative_rate"] = verdicts.count("trained") / max(1, len(verdicts))
        return found

    @staticmethod
    def _kind(settled: Settled[GroupOutput], item: Dequeued) -> str:
        if settled.output is None:
            return "failed"
        if settled.marker:
            return "rejected"
        return "stale" if item.stale else "admitted"

    def _warn(self, admitted: int, found: Mapping[str, float]) -> None:
        kind = "short" if 0 < admitted < self._batch_size else "empty" if not admitted else None
        if kind is None or kind in self._said:
            return
        self._said.add(kind)
        failed, rejected = found["admission/failed"], found["admission/rejected"]
        advice = (
            "look at why groups fail"
            if failed > rejected
            else "raise train.refill.max_groups_per_step, or draw tasks that suit the policy better"
        )
        log.warning(
            "a step trained %d of %d groups: the rule turned away %d and %d failed; %s",
            admitted,
            self._batch_size,
            rejected,
            failed,
            advice,
        )
