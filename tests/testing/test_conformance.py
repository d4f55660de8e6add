"""The conformance checks say what is wrong with samplers and rules, and nothing about good ones."""

from __future__ import annotations

import itertools
import random
from collections.abc import Mapping
from typing import Any

import pytest

from platoon.experimental import AdmissionRule, GroupRecord, Sampler, SamplerContext, TaskStatsView
from platoon.testing.admission import check_group_admission
from platoon.testing.samplers import check_task_sampler
from tests.draw import own_samplers as own


class Unseeded(Sampler):
    adaptive = True

    def next(self, ctx: SamplerContext) -> str:
        return random.SystemRandom().choice([task for task in ctx.task_ids if ctx.eligible(task)])


class OfASet(Sampler):
    """Depends on the process's hash seed."""

    def next(self, ctx: SamplerContext) -> str:
        return list(set(ctx.task_ids))[ctx.decision % 3]


class Counting(Sampler):
    """A static sampler with a memory that is not saved."""

    def __init__(self, setup: Any, options: Any) -> None:
        super().__init__(setup, options)
        self.count = itertools.count()

    def next(self, ctx: SamplerContext) -> str:
        return ctx.task_ids[next(self.count) % len(ctx.task_ids)]


class Deaf(own.Listener):
    def observe(self, record: GroupRecord) -> None:
        raise RuntimeError("cannot hear")

    def metrics(self, stats: object) -> Mapping[str, float]:
        return {}


class Fickle(AdmissionRule):
    def __init__(self, setup: Any, options: Any) -> None:
        super().__init__(setup, options)
        self.asked = 0

    def admit(self, group: GroupRecord, stats: TaskStatsView) -> bool:
        self.asked += 1
        return self.asked % 2 == 0


class Silent(AdmissionRule):
    def admit(self, group: GroupRecord, stats: TaskStatsView) -> Any:
        return None


def test_good_samplers_pass() -> None:
    check_task_sampler("pass_rate", options={"explore": 0.5})
    check_task_sampler("stride", options={"stride": 3})
    check_task_sampler("tests.draw.own_samplers:Alternate", levels=("run",))


def test_options_are_checked() -> None:
    with pytest.raises(AssertionError, match=r"options: .*stride"):
        check_task_sampler("stride", options={"stride": "x"})


@pytest.mark.parametrize(
    ("sampler", "said"),
    [
        (Unseeded, "deterministic: two instances drew differently"),
        (Counting, "static: it goes on differently after a resume"),
        (Deaf, "observe: observe raised RuntimeError: cannot hear"),
        (own.Unsaveable, "state: its state cannot be saved"),
        (own.Listener, "metrics: metric 'draws' is one of platoon's own names"),
        (own.Answers, "pool task or nothing: drew nothing"),
        (own.Forgetful, "protocol: .*next must not be async"),
        ("tests.testing.test_conformance:OfASet", "something depends on the order of a set"),
    ],
)
def test_faults_of_samplers_are_named(sampler: str | type[Any], said: str) -> None:
    with pytest.raises(AssertionError, match=said):
        check_task_sampler(sampler)


def test_slow_samplers_are_named() -> None:
    with pytest.raises(AssertionError, match=r"fast: a decision over 4,096 tasks takes"):
        check_task_sampler("pass_rate", budget_ms=1e-6, levels=("run",))


def test_built_in_rules_pass() -> None:
    check_group_admission("all")
    check_group_admission("informative")
    check_group_admission("informative", options={"band": [0.2, 0.8]})


@pytest.mark.parametrize(
    ("rule", "options", "said"),
    [
        (Fickle, {}, "pure: "),
        (Silent, {}, "answers: 105 of 105"),
        ("informative", {"band": 3}, "options: .*band"),
        ("informativ", {}, "protocol: .*did you mean 'informative'"),
    ],
)
def test_faults_of_rules_are_named(rule: str | type[Any], options: dict[str, Any], said: str) -> None:
    with pytest.raises(AssertionError, match=said):
        check_group_admission(rule, options=options)
