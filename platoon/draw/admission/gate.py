"""The gate that settled groups pass: which rule is asked for which entry, and what counts as its answer.

A rule that fails or answers wrongly admits the group: a fault in a rule must not starve training. It is logged once a
rule.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from platoon.config import ConfigError
from platoon.draw.admission.contract import Admission, AdmissionCheckContext, AdmissionSetup, GroupAdmission
from platoon.draw.admission.rules import RULES
from platoon.draw.samplers.settings import SamplingSettings
from platoon.draw.view import TaskStatsView
from platoon.extensions.boundary import Boundary
from platoon.stats.schema import EntryInfo, GroupRecord

log = logging.getLogger("platoon.draw")


@dataclass(frozen=True)
class EntryRule:
    """An entry's own rule."""

    rule: str
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class AdmissionSettings:
    """What a config says about admission. Entries without a rule of their own follow the run's."""

    rule: str = "all"
    options: Mapping[str, Any] = field(default_factory=dict)
    entries: Mapping[str, EntryRule] = field(default_factory=dict)
    max_groups_per_step: float = 3.0

    def of(self, entry: str) -> EntryRule:
        return self.entries.get(entry, EntryRule(self.rule, self.options))

    def active(self, labels: tuple[str, ...]) -> bool:
        """Some entry's rule is not, by name, `all`."""
        return any(self.of(label).rule != "all" for label in labels)

    def recorded(self, labels: tuple[str, ...]) -> dict[str, Any] | None:
        """What the sampling fingerprint holds; None when every group is admitted."""
        if not self.active(labels):
            return None
        rules = {
            label: {"rule": own.rule, "options": RULES.resolve(own.rule).recorded(own.options)}
            for label, own in ((label, self.of(label)) for label in labels)
        }
        return {"max_groups_per_step": self.max_groups_per_step, "entries": rules}


def check_admission(settings: AdmissionSettings, sampling: SamplingSettings, *, gives_verdicts: bool = True) -> None:
    """Look the rules up and check their options. ConfigError reports all of them."""
    problems: list[str] = []
    places: list[tuple[str | None, str, EntryRule]] = [
        (None, "train.group_admission", EntryRule(settings.rule, settings.options)),
        *((label, f"environments[{label}].group_admission", own) for label, own in settings.entries.items()),
    ]
    for label, at, own in places:
        try:
            component = RULES.resolve(own.rule)
        except ValueError as error:
            problems.append(f"{at}: {error}")
            continue
        context = AdmissionCheckContext(
            level="run" if label is None else "entry",
            entry=label,
            entries=sampling.described,
            batch_size=sampling.batch_size,
            label_column=sampling.label_by,
            max_groups_per_step=settings.max_groups_per_step,
            workflow_gives_verdicts=gives_verdicts,
        )
        problems += component.problems(at, own.options, context)
    if problems:
        raise ConfigError(problems, "the admission rules cannot decide")


@dataclass(frozen=True, slots=True)
class Ruling:
    """What was decided of a group, why, and by which rule (a qualified name)."""

    admit: bool
    reason: str
    rule: str


class AdmissionGate:
    """The rules of one start: one instance for the run, one for each entry with its own."""

    def __init__(
        self,
        settings: AdmissionSettings,
        sampling: SamplingSettings,
        infos: Mapping[str, EntryInfo],
        view: TaskStatsView,
    ) -> None:
        self._view = view
        self._rules: dict[str | None, tuple[str, GroupAdmission]] = {}
        self.complaints: dict[str, str] = {}  # the first of each rule
        self._errors = 0
        places: dict[str | None, EntryRule] = {None: EntryRule(settings.rule, settings.options)}
        places.update(settings.entries)
        for label, own in places.items():
            name = own.rule if label is None else f"{own.rule}@{label}"
            setup = AdmissionSetup(
                name, "run" if label is None else "entry", label, infos, sampling.batch_size, sampling.label_by
            )
            component = RULES.resolve(own.rule)
            self._rules[label] = (name, component.cls(setup, component.parse(own.options)))

    def decide(self, record: GroupRecord, *, failed: bool) -> Ruling:
        """Whether the group trains. A failed one does not, and no rule is asked."""
        name, rule = self._rules.get(record.entry, self._rules[None])
        if failed:
            return Ruling(False, "failed", name)
        answer: object = None
        with Boundary("admission rule", quiet=True) as caught:
            answer = rule.admit(record, self._view)
        if caught.error is not None:
            return self._admit_anyway(name, f"raised {caught.text}")
        if isinstance(answer, bool):
            answer = Admission(answer)
        if inspect.iscoroutine(answer):
            answer.close()
        if not isinstance(answer, Admission) or not isinstance(answer.admit, bool):
            kind = f"{type(answer).__module__}.{type(answer).__qualname__}".removeprefix("builtins.")
            return self._admit_anyway(name, f"answered with a value of type {kind}")
        reason: object = answer.reason
        if reason is None:
            reason = "admitted" if answer.admit else "rejected"
        if not isinstance(reason, str) or not 1 <= len(reason) <= 64:
            return self._admit_anyway(name, f"gave the reason {reason!r}; it needs 1 to 64 characters")
        return Ruling(answer.admit, reason, name)

    def _admit_anyway(self, name: str, text: str) -> Ruling:
        self._errors += 1
        log.log(logging.DEBUG if name in self.complaints else logging.ERROR, "rule %s %s; it admits", name, text)
        self.complaints.setdefault(name, text)
        return Ruling(True, "admitted", name)

    def take_errors(self) -> int:
        """Faults of the rules since the last call."""
        errors, self._errors = self._errors, 0
        return errors
