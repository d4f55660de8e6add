"""Admission: the built-in rules, the gate around a rule of one's own, and a dispatcher that refills."""

from __future__ import annotations

from typing import Any

import pytest

from platoon.config import ConfigError
from platoon.draw.admission.gate import AdmissionGate, AdmissionSettings, EntryRule, check_admission
from platoon.draw.dispatcher import Dispatcher
from platoon.draw.samplers.settings import EntrySampling, SamplingSettings
from platoon.experimental import Admission, AdmissionRule, GroupRecord, MemberResult, TaskStatsStore, TaskStatsView
from platoon.stats.schema import EntryInfo
from tests.draw.builders import bounds, in_listing_order, listing, start_all

SAMPLING = SamplingSettings(2, (EntrySampling("a"), EntrySampling("b")))
INFOS = {"a": EntryInfo(4, 1.0, "a"), "b": EntryInfo(4, 0.5, "b")}
OWN = "tests.draw.test_admission:"


def record(verdict: str, passes: int = 0, valid: int = 4, entry: str = "a") -> GroupRecord:
    members = tuple(MemberResult(1.0, float(i < passes), i < valid, "scored", "ok") for i in range(4))
    return GroupRecord(1, 0, "t", entry, {}, 4, "auto", "order", 0, {"main": 0}, members, verdict)


def gate_of(rule: str = "informative", entries: dict[str, EntryRule] | None = None, **options: Any) -> AdmissionGate:
    settings = AdmissionSettings(rule, options, entries or {})
    check_admission(settings, SAMPLING)
    store = TaskStatsStore([("t", "a", None)], INFOS)
    return AdmissionGate(settings, SAMPLING, INFOS, TaskStatsView(store, lambda: 0))


class Answering(AdmissionRule):
    answer: object = True

    def admit(self, group: GroupRecord, stats: TaskStatsView) -> Any:
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


class Awaiting(AdmissionRule):
    async def admit(self, group: GroupRecord, stats: TaskStatsView) -> bool:  # type: ignore[override]
        return True


@pytest.mark.parametrize(
    ("group", "admit", "reason"),
    [
        (record("uniform", 4), False, "uniform_pass"),
        (record("uniform", 0), False, "uniform_fail"),
        (record("uniform", 2), False, "uniform_mixed"),
        (record("uniform", 0, valid=0), False, "uniform_mixed"),
        (record("below_min"), False, "below_min"),
        (record("no_datums", 2), False, "no_datums"),
        (record("trained", 2), True, "admitted"),
        (record("unknown", 2), True, "unknown"),
    ],
)
def test_informative(group: GroupRecord, admit: bool, reason: str) -> None:
    ruling = gate_of().decide(group, failed=False)
    assert (ruling.admit, ruling.reason, ruling.rule) == (admit, reason, "informative")


@pytest.mark.parametrize(
    ("passes", "reason"), [(0, "below_band"), (1, "admitted"), (2, "admitted"), (3, "above_band"), (4, "above_band")]
)
def test_a_band_of_pass_rates(passes: int, reason: str) -> None:
    ruling = gate_of(band=[0.25, 0.5]).decide(record("trained", passes), failed=False)
    assert ruling.reason == reason
    assert ruling.admit == (reason == "admitted")


def test_a_band_says_nothing_of_groups_without_valid_members() -> None:
    assert gate_of(band=[0.25, 0.5]).decide(record("trained", 0, valid=0), failed=False).admit


@pytest.mark.parametrize("band", [[0.5, 0.5], [-0.1, 1], [0, 1.1], [0.1], "wide"])
def test_bad_bands_are_refused(band: object) -> None:
    with pytest.raises(ConfigError, match=r"train\.group_admission_options\.band"):
        gate_of(band=band)


def test_entries_may_have_rules_of_their_own() -> None:
    gate = gate_of("all", {"b": EntryRule("informative", {"band": [0.0, 0.5]})})
    assert gate.decide(record("uniform", 4), failed=False).rule == "all"
    ruling = gate.decide(record("trained", 3, entry="b"), failed=False)
    assert (ruling.admit, ruling.reason, ruling.rule) == (False, "above_band", "informative@b")


def test_failed_groups_ask_no_rule() -> None:
    ruling = gate_of("all").decide(record("failed"), failed=True)
    assert (ruling.admit, ruling.reason) == (False, "failed")


@pytest.mark.parametrize(
    ("answer", "admit", "reason"),
    [
        (True, True, "admitted"),
        (False, False, "rejected"),
        (Admission(False, "too long"), False, "too long"),
        (Admission(False, ""), True, "admitted"),
        (None, True, "admitted"),
        ("yes", True, "admitted"),
        (ValueError("no idea"), True, "admitted"),
    ],
)
def test_answers_and_faults_of_a_rule(answer: object, admit: bool, reason: str, request: pytest.FixtureRequest) -> None:
    Answering.answer = answer
    request.addfinalizer(lambda: setattr(Answering, "answer", True))
    gate = gate_of(OWN + "Answering")
    ruling = gate.decide(record("trained", 2), failed=False)
    assert (ruling.admit, ruling.reason) == (admit, reason)
    wrong = not isinstance(answer, bool) and not (isinstance(answer, Admission) and answer.reason)
    assert (gate.take_errors(), gate.take_errors()) == (int(wrong), 0)


def test_rules_that_do_not_do_are_refused() -> None:
    for rule, said in ((OWN + "Awaiting", "must not be async"), ("informativ", "did you mean 'informative'")):
        with pytest.raises(ConfigError, match=said):
            gate_of(rule)
    with pytest.raises(ConfigError, match="takes no options"):
        gate_of("all", band=[0, 1])


def test_the_fingerprint_names_each_entrys_rule() -> None:
    settings = AdmissionSettings("informative", {}, {"b": EntryRule("all")}, 2.0)
    assert settings.recorded(("a", "b")) == {
        "max_groups_per_step": 2.0,
        "entries": {
            "a": {"rule": "informative", "options": {"band": None}},
            "b": {"rule": "all", "options": {}},
        },
    }
    assert AdmissionSettings().recorded(("a", "b")) is None


# -- the dispatcher


def refilling(batch_size: int, ahead: int | None, cap: int, steps: int = 2) -> Dispatcher:
    settings = bounds(batch_size, ahead, cap=cap)
    return in_listing_order(listing("x"), settings, steps=steps)


def test_a_rejected_group_with_datums_makes_room_at_once() -> None:
    dispatcher = refilling(2, 0, cap=6)
    first = start_all(dispatcher)
    assert len(first) == 2
    records = dispatcher.rejected(first[0].key, "rejected", "informative", "uniform_fail", held=False)
    assert records[0].event() == {
        "event": "fate",
        "start": 1,
        "seq": 0,
        "fate": "rejected",
        "rule": "informative",
        "admission": "uniform_fail",
    }
    assert len(start_all(dispatcher)) == 1
    assert first[0].key not in {tuple(row[:2]) for row in dispatcher.state()["outstanding"]}


def test_a_group_without_datums_holds_its_place_until_its_marker_is_taken() -> None:
    dispatcher = refilling(2, 0, cap=6)
    first = start_all(dispatcher)
    dispatcher.rejected(first[0].key, "failed", "all", "failed", held=True)
    assert start_all(dispatcher) == []
    dispatcher.dequeued(first[0].key, fills=False)
    assert dispatcher.counted == 1
    assert len(start_all(dispatcher)) == 1


def test_a_step_closes_at_its_cap_and_starts_no_more_than_it_may_count() -> None:
    dispatcher = refilling(2, 0, cap=4)
    rejected = 0
    while started := start_all(dispatcher):
        for draw in started:
            dispatcher.rejected(draw.key, "rejected", "r", "x", held=False)
            rejected += 1
    assert rejected == 4
    for seq in range(4):
        assert dispatcher.closed is False
        dispatcher.dequeued((1, seq), fills=False)
    assert dispatcher.closed
    dispatcher.step_started()
    assert not dispatcher.closed
    assert len(start_all(dispatcher)) == 2


def test_markers_of_an_earlier_step_do_not_count() -> None:
    dispatcher = refilling(2, 1, cap=4, steps=3)
    started = start_all(dispatcher)
    for draw in started[:2]:
        dispatcher.settled(draw.key)
        dispatcher.dequeued(draw.key)
    dispatcher.rejected(started[2].key, "rejected", "r", "x", held=False)
    dispatcher.commit({draw.key: "consumed" for draw in started[:2]})
    dispatcher.step_started()
    dispatcher.dequeued(started[2].key, fills=False)
    assert dispatcher.counted == 0


def test_the_last_step_waits_for_the_plan_once_it_has_what_it_may_count() -> None:
    dispatcher = refilling(2, 3, cap=2, steps=1)
    for draw in start_all(dispatcher):
        dispatcher.rejected(draw.key, "rejected", "r", "x", held=False)
    decision = dispatcher.choose()
    assert getattr(decision, "reason", None) == "plan"
