"""The conformance checks say what is wrong with samplers and rules, and nothing about good ones."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from platoon.experimental import Admission, AdmissionRule, Draw, GroupRecord, Sampler, SamplerContext, TaskStatsView
from platoon.testing import check_group_admission, check_task_sampler
from tests.draw import own_samplers as own


class Unseeded(Sampler):
    adaptive = True

    def next(self, ctx: SamplerContext) -> str:
        return random.SystemRandom().choice([task for task in ctx.task_ids if ctx.eligible(task)])


class OfASet(Sampler):
    """Depends on the process's hash seed."""

    def next(self, ctx: SamplerContext) -> str:
        return list(set(ctx.task_ids))[ctx.decision % 3]


class Forgetting(Sampler):
    """Goes round the eligible tasks by a count that it does not save."""

    adaptive = True

    def __init__(self, setup: Any, options: Any) -> None:
        super().__init__(setup, options)
        self.count = 0

    def next(self, ctx: SamplerContext) -> str:
        self.count += 1
        return [task for task in ctx.task_ids if ctx.eligible(task)][self.count % 3]


class HalfSaved(Forgetting):
    """Says what it counted, and starts with one more."""

    def state_dict(self) -> Mapping[str, Any]:
        return {"count": self.count}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.count = state["count"] + 1


class Unloadable(HalfSaved):
    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.count = state["counted"]


class CountsReadings(Forgetting):
    """Reading its state moves it on."""

    def state_dict(self) -> Mapping[str, Any]:
        self.count += 1
        return {"count": self.count}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.count = state["count"]


class Shared(Forgetting):
    """Random numbers of the whole process, seeded once."""

    def __init__(self, setup: Any, options: Any) -> None:
        super().__init__(setup, options)
        random.seed(0)

    def next(self, ctx: SamplerContext) -> str:
        return random.choice([task for task in ctx.task_ids if ctx.eligible(task)])


class Beyond(Sampler):
    """Draws past the end of its pool in time."""

    def next(self, ctx: SamplerContext) -> str:
        return ctx.task_ids[ctx.decision] if ctx.decision < len(ctx.task_ids) else f"a::{ctx.decision}"


class Ineligible(Sampler):
    adaptive = True

    def next(self, ctx: SamplerContext) -> str:
        return ctx.task_ids[0]


class Negative(Sampler):
    def next(self, ctx: SamplerContext) -> Draw:
        return Draw(ctx.task_ids[0], score=-math.inf)


class Curriculum(Sampler):
    """A static order that follows the step: a resume from a position cannot reproduce it."""

    def next(self, ctx: SamplerContext) -> str:
        return ctx.task_ids[(ctx.decision + ctx.versions["main"]) % len(ctx.task_ids)]


class Scribbling(Sampler):
    """Writes into what it is given when it is made."""

    def __init__(self, setup: Any, options: Any) -> None:
        super().__init__(setup, options)
        setup.entries["z"] = setup.entries["a"]

    def next(self, ctx: SamplerContext) -> str:
        return ctx.task_ids[0]


class Masking(Ineligible):
    """Marks the drawn task in the mask of the eligible."""

    def next(self, ctx: SamplerContext) -> str:
        if ctx.eligible_N is not None:
            ctx.eligible_N[0] = True
        return next(task for task in ctx.task_ids if ctx.eligible(task))


class Tagging(Masking):
    """Marks the records that it hears of."""

    def next(self, ctx: SamplerContext) -> str:
        return next(task for task in ctx.task_ids if ctx.eligible(task))

    def observe(self, record: GroupRecord) -> None:
        record.labels["heard"] = "yes"  # type: ignore[index]


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


class Dividing(AdmissionRule):
    """Forgets groups without a valid rollout."""

    def admit(self, group: GroupRecord, stats: TaskStatsView) -> bool:
        return 0.2 < group.passes(1.0) / group.valid < 0.8


class Marking(AdmissionRule):
    def admit(self, group: GroupRecord, stats: TaskStatsView) -> bool:
        group.labels["seen"] = "yes"  # type: ignore[index]
        return True


class Coin(AdmissionRule):
    def admit(self, group: GroupRecord, stats: TaskStatsView) -> bool:
        return random.SystemRandom().random() < 0.5


class Numpy(AdmissionRule):
    def admit(self, group: GroupRecord, stats: TaskStatsView) -> Any:
        return np.mean([member.valid for member in group.members]) > 0.5


class Wordy(AdmissionRule):
    def admit(self, group: GroupRecord, stats: TaskStatsView) -> Admission:
        return Admission(False, "because " * 20)


class Novel(AdmissionRule):
    """Admits a task once."""

    def __init__(self, setup: Any, options: Any) -> None:
        super().__init__(setup, options)
        self.seen: set[int] = set()

    def admit(self, group: GroupRecord, stats: TaskStatsView) -> bool:
        new = group.seq not in self.seen
        self.seen.add(group.seq)
        return new


class Unmade(AdmissionRule):
    def __init__(self, setup: Any, options: Any) -> None:
        super().__init__(setup, options)
        self.own = setup.entries["c"]

    def admit(self, group: GroupRecord, stats: TaskStatsView) -> bool:
        return True


class Later(AdmissionRule):
    def admit(self, group: GroupRecord, stats: TaskStatsView) -> Any:
        return self.think()

    async def think(self) -> bool:
        return True


class Silent(AdmissionRule):
    def admit(self, group: GroupRecord, stats: TaskStatsView) -> Any:
        return None


def test_good_samplers_pass() -> None:
    check_task_sampler("pass_rate", options={"explore": 0.5})
    check_task_sampler("stride", options={"stride": 3})
    check_task_sampler(own.Alternate, levels=("run",))


def test_options_are_checked() -> None:
    with pytest.raises(AssertionError, match=r"options: .*stride"):
        check_task_sampler("stride", options={"stride": "x"})


@pytest.mark.parametrize(
    ("sampler", "said"),
    [
        (Unseeded, "deterministic: two instances drew differently"),
        (Shared, "deterministic: two instances drew differently"),
        (CountsReadings, "deterministic: two instances drew differently"),
        (Forgetting, "state: it goes on differently after a resume: at 0: "),
        (HalfSaved, "state: it goes on differently after a resume: at 0: "),
        (Unloadable, "state: .*its state does not load.*KeyError"),
        (Counting, "static: decision 39 of a fresh instance is"),
        (Curriculum, "static: decision 39 .* may depend on ctx.decision, ctx.key and the options alone"),
        (Beyond, "pool task or nothing: drew 'a::24', which is not a task of its pool"),
        (Ineligible, "pool task or nothing: drew 'a::0', which cannot start now"),
        (Negative, "pool task or nothing: gave the score -inf; it needs a finite number"),
        (Scribbling, "protocol: it cannot be made: TypeError"),
        (Masking, "pool task or nothing: raised ValueError: assignment destination is read-only"),
        (Tagging, "observe: it changed the record"),
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
        (Fickle, {}, "pure: a second answer for the same group differs"),
        (Coin, {}, "pure: a second answer for the same group differs"),
        (Novel, {}, "pure: a second answer for the same group differs"),
        (Marking, {}, "pure: it changed a group's record"),
        (Dividing, {}, "answers: 35 of 105 .*: it raised ZeroDivisionError"),
        (Silent, {}, "answers: 105 of 105 .*: it answered with a value of type NoneType"),
        (Numpy, {}, "answers: 105 of 105 .*: it answered with a value of type numpy.bool"),
        (Later, {}, "answers: 105 of 105 .*: it answered with a value of type coroutine"),
        (Wordy, {}, "answers: 105 of 105 .*: it gave the reason .* needs 1 to 64 characters"),
        (Unmade, {}, "protocol: it cannot be made: KeyError"),
        ("informative", {"band": 3}, "options: .*band"),
        ("informativ", {}, "protocol: .*did you mean 'informative'"),
    ],
)
def test_faults_of_rules_are_named(rule: str | type[Any], options: dict[str, Any], said: str) -> None:
    with pytest.raises(AssertionError, match=said):
        check_group_admission(rule, options=options)
