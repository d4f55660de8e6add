"""Samplers of one's own at work: answers checked, failures survived, state saved."""

from __future__ import annotations

import json
import logging
from typing import Any

import pytest

import tests.draw.own_samplers as own
from platoon.config import ConfigError
from platoon.draw.order import decision_key
from platoon.draw.pool import PoolRow, TaskPool
from platoon.draw.registry import Registry
from platoon.draw.samplers.checks import check_sampling
from platoon.draw.samplers.hosted import Scene
from platoon.draw.samplers.sampling import Owed, Pick, Sampling, build_sampling
from platoon.draw.samplers.settings import EntrySampling, SamplingSettings
from platoon.experimental import Draw, GroupRecord, Slot, task_sampler

OWN = "tests.draw.own_samplers:"


def pool_of(**sizes: int) -> TaskPool:
    return TaskPool([PoolRow(f"{e}{i}", e, e) for e, size in sizes.items() for i in range(size)])


def sampling_of(sampler: str, pool: TaskPool, own_sampler: str | None = None, **options: Any) -> Sampling:
    entries = tuple(EntrySampling(str(entry), task_sampler=own_sampler) for entry in pool.by_entry)
    run = SamplingSettings(4, entries, sampler, options)
    check_sampling(run)
    return build_sampling(run, pool)


def tasks(sampling: Sampling, pool: TaskPool, count: int) -> list[str]:
    taken = [sampling.take(position) for position in range(count)]
    return [pool[pick.row_index].task_id if isinstance(pick, Pick) else f"slot {pick.entry}" for pick in taken]


def asked(sampling: Sampling, scene: Scene | None = None) -> Pick | None:
    return sampling.ask(None, scene or Scene())


def test_a_registered_name_takes_its_options() -> None:
    pool = pool_of(a=5)
    assert tasks(sampling_of("stride", pool, stride=2), pool, 4) == ["a0", "a2", "a4", "a1"]
    with pytest.raises(ConfigError, match=r"train\.task_sampler_options\.stride"):
        sampling_of("stride", pool, stride="two")


def test_a_class_may_hand_slots_and_resumes_by_replay() -> None:
    pool = pool_of(a=5, b=3)
    whole = tasks(sampling_of(OWN + "Alternate", pool), pool, 12)
    assert {name[0] for name in whole[::2]} == {"a"}
    again = sampling_of(OWN + "Alternate", pool)
    again.seek(5)
    rest = [again.take(position) for position in range(5, 12)]
    assert [pool[pick.row_index].task_id for pick in rest if isinstance(pick, Pick)] == whole[5:]


def test_slots_of_an_adaptive_entry_are_owed() -> None:
    pool = pool_of(a=5, b=3)
    sampling = sampling_of("weighted", pool, OWN + "Listener")
    assert isinstance(sampling.take(0), Owed)
    pick = sampling.ask("b", Scene())
    assert pick is not None
    assert pick.sampler == OWN + "Listener@b"
    assert (pick.reason, pick.score) == ("new", 0.5)


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (ValueError("no idea"), "raised ValueError: no idea"),
        ("z9", "not a task of its pool"),
        ("b0", "cannot start now"),
        (None, "drew nothing"),
        (Slot("a"), "gave a slot"),
        (Draw("a0", ""), "the reason ''"),
        (Draw("a0", "x", float("inf")), "the score inf"),
        (17, "a value of type int"),
    ],
)
def test_a_refused_answer_becomes_a_fallback(
    answer: object, said: str, caplog: pytest.LogCaptureFixture, request: pytest.FixtureRequest
) -> None:
    pool = pool_of(a=3, b=2)
    own.Answers.answer = answer
    request.addfinalizer(lambda: setattr(own.Answers, "answer", None))
    sampling = sampling_of(OWN + "Answers", pool)
    with caplog.at_level(logging.DEBUG, "platoon.draw"):
        picks = [asked(sampling, Scene(closed=frozenset({"b"}))) for _ in range(2)]
    assert [record.levelname for record in caplog.records] == ["ERROR", "DEBUG"]
    assert said in caplog.text
    for decision, pick in enumerate(picks):
        assert pick is not None
        assert pick.row_index == decision_key(0, OWN + "Answers", decision) % 3
        assert (pick.reason, pick.score) == ("fallback", None)


def test_a_static_fallback_is_a_row_by_the_decisions_key() -> None:
    pool = pool_of(a=3, b=2)
    sampling = sampling_of(OWN + "StaticAnswers", pool)
    taken = [sampling.take(position) for position in range(4)]
    keys = [decision_key(0, OWN + "StaticAnswers", position) % 5 for position in range(4)]
    assert [pick.row_index for pick in taken if isinstance(pick, Pick)] == keys


def test_large_groups_are_not_eligible_for_few_permits() -> None:
    pool = pool_of(a=1, b=1)
    entries = (EntrySampling("a", group_size=8), EntrySampling("b", group_size=2))
    sampling = build_sampling(SamplingSettings(4, entries, OWN + "Listener"), pool)
    picks = [asked(sampling, Scene(largest=4)) for _ in range(5)]
    assert {pick.row_index for pick in picks if pick} == {1}


def test_observing_state_and_metrics(caplog: pytest.LogCaptureFixture) -> None:
    pool = pool_of(a=3)
    sampling = sampling_of(OWN + "Listener", pool)
    record = GroupRecord(1, 0, "a1", "a", {}, 1, "x", "order", 0, {"main": 0}, (), "failed")
    sampling.observe(record)
    assert sampling.metrics() == {"sampler/heard": 1.0}
    assert "platoon's own names" in caplog.text
    assert "not a finite number" in caplog.text
    saved = json.loads(json.dumps(sampling.state()))
    again = sampling_of(OWN + "Listener", pool)
    assert again.load_state(saved, 0) == []
    assert again.state() == saved
    pick = asked(again)
    assert pick is not None
    assert pick.reason == "heard"


def test_a_state_that_is_no_json_is_not_saved() -> None:
    pool = pool_of(a=3)
    sampling = sampling_of(OWN + "Unsaveable", pool)
    asked(sampling)
    saved = sampling.state()
    assert saved["run"] == {"name": OWN + "Unsaveable", "class": OWN + "Unsaveable", "decisions": 1}
    again = sampling_of(OWN + "Unsaveable", pool)
    assert "starts afresh" in again.load_state(saved, 0)[0]


@pytest.mark.parametrize(
    ("reference", "said"),
    [
        (OWN + "Forgetful", "next must not be async"),
        (OWN + "Undecided", "needs a method state_dict; needs a method load_state_dict; needs the class attribute"),
        (OWN + "SlotsLate", "entry_slots needs adaptive = False"),
        (OWN + "Missing", "has no attribute"),
        ("no_such_module:X", "cannot be imported"),
        (OWN + "StrideOptions", "needs a method next"),
        ("strid", "did you mean 'stride'"),
    ],
)
def test_references_that_do_not_do_are_refused(reference: str, said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        sampling_of(reference, pool_of(a=2))
    assert said in str(caught.value)


def test_entry_samplers_need_slots() -> None:
    with pytest.raises(ConfigError, match="draws the tasks itself"):
        sampling_of("stride", pool_of(a=2, b=2), OWN + "Listener")


@pytest.mark.parametrize("name", ["a b", "a:b", "a@b", "", "pass-rate", "Weighted"])
def test_names_have_rules(name: str) -> None:
    with pytest.raises(ValueError, match="task_sampler name"):
        task_sampler(name)(own.Listener)


def test_one_name_one_class() -> None:
    registry = Registry("task_sampler", {}, lambda cls: [])
    registry.register("mine")(own.Listener)
    registry.register("mine")(own.Listener)
    with pytest.raises(ValueError, match=r"is tests\.draw\.own_samplers:Listener already"):
        registry.register("mine")(own.Stride)
