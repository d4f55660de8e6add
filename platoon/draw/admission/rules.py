"""The built-in rules, rules by reference, and the decorator that registers one."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

from platoon.draw.admission.contract import Admission, AdmissionCheckContext, AdmissionRule, AdmissionSetup
from platoon.draw.registry import ClassT, Registry, method_problems
from platoon.draw.view import TaskStatsView
from platoon.extensions.options import OptionSchema
from platoon.stats.schema import GroupRecord

log = logging.getLogger("platoon.draw")
_NOTHING_TO_TRAIN = frozenset(
    {"reward_key_mismatch", "no_results", "below_min", "no_completed_root", "no_datums", "failed"}
)
_UNIFORM = {"all_pass": "uniform_pass", "all_fail": "uniform_fail"}


class All(AdmissionRule):
    """Every group trains."""

    def admit(self, group: GroupRecord, stats: TaskStatsView) -> Admission:
        return Admission(True)


@dataclass(frozen=True)
class InformativeOptions:
    """`band`: lowest and highest pass rate of a group that trains; None for any."""

    band: tuple[float, float] | None = None

    def __post_init__(self) -> None:
        if self.band is not None and not 0.0 <= self.band[0] < self.band[1] <= 1.0:
            raise ValueError(f"band: needs 0 <= low < high <= 1; got {list(self.band)}")


class Informative(AdmissionRule):
    """Groups whose rollouts differ in what they are rewarded: the others give no gradient."""

    options_schema: ClassVar[OptionSchema] = InformativeOptions

    def __init__(self, setup: AdmissionSetup, options: InformativeOptions) -> None:
        super().__init__(setup, options)
        self._warned = False

    @staticmethod
    def check(options: InformativeOptions, ctx: AdmissionCheckContext) -> None:
        if not ctx.workflow_gives_verdicts:
            raise ValueError("informative needs a workflow that gives verdicts (gives_verdicts = True on its class)")

    def admit(self, group: GroupRecord, stats: TaskStatsView) -> Admission:
        threshold = stats.threshold(group.entry)
        if group.verdict == "uniform":
            return Admission(False, _UNIFORM.get(group.kind(threshold) or "", "uniform_mixed"))
        if group.verdict in _NOTHING_TO_TRAIN:
            return Admission(False, group.verdict)
        if self.options.band is not None and group.valid:
            low, high = self.options.band
            rate = group.passes(threshold) / group.valid
            if rate < low:
                return Admission(False, "below_band")
            if rate > high:
                return Admission(False, "above_band")
        if group.verdict == "trained":
            return Admission(True)
        if not self._warned:
            log.warning("rule %s admits groups of verdict %r, which it does not know", self.setup.name, group.verdict)
        self._warned = True
        return Admission(True, "unknown")


RULES = Registry(
    "group_admission", {"all": All, "informative": Informative}, lambda cls: method_problems(cls, ("admit",))
)


def group_admission(
    name: str, options: OptionSchema = None, check: Callable[[Any, Any], None] | None = None
) -> Callable[[ClassT], ClassT]:
    """Class decorator: register a rule under a name that configs may use."""
    return RULES.register(name, options, check)
