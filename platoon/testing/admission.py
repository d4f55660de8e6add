"""The conformance check of admission rules: answers, purity and speed, tried on made-up groups."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Literal

from platoon.draw.admission.contract import AdmissionCheckContext
from platoon.draw.admission.gate import AdmissionGate, AdmissionSettings, EntryRule
from platoon.draw.admission.rules import RULES
from platoon.draw.samplers.settings import EntrySampling, SamplingSettings
from platoon.draw.view import TaskStatsView
from platoon.extensions.boundary import Boundary
from platoon.stats.schema import EntryInfo, GroupRecord, MemberResult
from platoon.stats.store import TaskStatsStore

Level = Literal["run", "entry"]
_GROUP = 4
_INFOS = {name: EntryInfo(_GROUP, 1.0, name, index=index) for index, name in enumerate(("a", "b"))}
_SAMPLING = SamplingSettings(4, (EntrySampling("a", group_size=_GROUP), EntrySampling("b", group_size=_GROUP)))
_VERDICTS = ("trained", "uniform", "below_min", "no_datums", "no_completed_root", "reward_key_mismatch", "unknown")


def check_group_admission(
    rule: str | type[Any],
    *,
    options: Mapping[str, Any] | None = None,
    levels: Iterable[Level] = ("run", "entry"),
    budget_ms: float = 2.0,
) -> None:
    """Check a rule, given by reference or as its class. AssertionError lists the checks that failed.

    `budget_ms`: most of the median answer.
    """
    try:
        component = RULES.resolve(rule) if isinstance(rule, str) else RULES.of_class(rule)
    except ValueError as error:
        raise AssertionError(f"protocol: {error}") from error
    reference = component.ref
    failed: list[str] = []
    for level in levels:
        entry = None if level == "run" else "a"
        context = AdmissionCheckContext(
            level, entry, _SAMPLING.described, 4, "_platoon_environment", 3.0, workflow_gives_verdicts=True
        )
        problems = component.problems("rule", options or {}, context)
        failed += [f"{level} level, options: {problem}" for problem in problems]
        if not problems:
            own = EntryRule(reference, dict(options or {}))
            settings = (
                AdmissionSettings(own.rule, own.options) if level == "run" else AdmissionSettings(entries={"a": own})
            )
            failed += [f"{level} level, {text}" for text in _answers(settings, budget_ms)]
    if failed:
        raise AssertionError("\n".join([f"{component.source} fails {len(failed)} checks:", *failed]))


def _answers(settings: AdmissionSettings, budget_ms: float) -> Iterator[str]:
    store = TaskStatsStore([("t", "a", None)], _INFOS, group_size=_GROUP)
    groups = list(_groups())
    for group in groups[::3]:
        store.settle(group)
    view = TaskStatsView(store, lambda: 3)
    gates: list[AdmissionGate] = []
    with Boundary("admission rule", quiet=True) as caught:
        gates = [AdmissionGate(settings, _SAMPLING, _INFOS, view) for _ in range(2)]
    if caught.error is not None:
        yield f"protocol: it cannot be made: {caught.text}"
        return
    times: list[float] = []
    rulings = []
    for group in groups:
        before = time.perf_counter()
        rulings.append(gates[0].decide(group, failed=False))
        times.append((time.perf_counter() - before) * 1e3)
    if errors := gates[0].take_errors():
        first = next(iter(gates[0].complaints.values()))
        yield f"answers: {errors} of {len(groups)} groups got no answer that counts: it {first}"
    again = [gates[0].decide(group, failed=False) for group in groups]
    backwards = [gates[1].decide(group, failed=False) for group in reversed(groups)][::-1]
    if rulings != again:
        yield "pure: a second answer for the same group differs"
    elif rulings != backwards:
        yield "pure: an answer depends on the groups asked for before"
    if groups != list(_groups()):
        yield "pure: it changed a group's record; others read it, too"
    if (median := statistics.median(times)) > budget_ms:
        yield f"fast: an answer takes {median:.2f} ms at the median; at most {budget_ms} ms"


def _groups() -> Iterator[GroupRecord]:
    for seq, verdict in enumerate(_VERDICTS):
        for passes in range(_GROUP + 1):
            for valid in (0, _GROUP - 1, _GROUP):
                members = tuple(
                    MemberResult(float(i < passes), float(i < passes), i < valid, "scored", "ok") for i in range(_GROUP)
                )
                at = {"main": passes}
                labels = {"_platoon_environment": "a"}
                yield GroupRecord(1, seq, "t", "a", labels, _GROUP, "check", "order", seq, at, members, verdict)
