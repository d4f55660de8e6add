"""Steps that learn nothing are told of, with what became of their groups."""

from __future__ import annotations

from pathlib import Path

import pytest

from platoon.credit import GroupOutput
from platoon.stats.metrics import Dequeued
from platoon.stats.schema import GroupRecord, MemberResult
from platoon.train.idle_warning import IdleWarning, became_of
from platoon.train.run import train_run
from tests.train.running import loaded

FAILED = Dequeued(None)


def test_the_first_idle_step_is_told_and_then_ever_fewer_of_a_row() -> None:
    warning = IdleWarning()
    given = [warning.step(number, 0, [FAILED]) for number in range(1, 31)]
    assert [number for number, text in enumerate(given, start=1) if text] == [1, 3, 10, 30]
    assert given[0] == "step 1 updated nothing: of 1 groups 1 failed"
    assert given[2] is not None
    assert given[2].startswith("step 3, as the 2 before it, updated nothing")
    assert (
        warning.ended() == "none of the 30 steps of this start updated the policy: its weights are those it began with"
    )


def test_an_update_ends_the_row_and_the_word_at_the_end() -> None:
    warning = IdleWarning()
    given = [warning.step(number, int(number == 2), [FAILED]) for number in range(1, 6)]
    assert [number for number, text in enumerate(given, start=1) if text] == [1, 5]
    assert warning.ended() is None
    assert IdleWarning().ended() is None, "a start without a step has nothing to say"


def test_groups_are_counted_by_what_became_of_them() -> None:
    assert became_of([FAILED, FAILED, Dequeued(None, stale=True)]) == "of 3 groups 2 failed, 1 stale"
    assert became_of([]) == "no group was left to take"


def scored(reward: float) -> Dequeued:
    """A group of two rollouts with this reward."""
    member = MemberResult(reward, reward, True, "scored", "completed")
    record = GroupRecord(0, 0, "t", None, {}, 2, "uniform", "order", 0, {"main": 0}, (member, member), "uniform")
    return Dequeued(GroupOutput([], "uniform", record.members), record)


def test_a_step_whose_every_rollout_solved_its_task_is_no_warning(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "platoon.train")
    solved = IdleWarning().step(1, 0, [scored(1.0)] * 3)
    assert solved == "step 1 updated nothing: of 3 groups 3 that every rollout solved (rollouts by outcome: 6 scored)"
    mixed = IdleWarning().step(1, 0, [scored(1.0), scored(0.0), scored(0.0)])
    assert mixed is not None
    assert "of 3 groups 2 that no rollout solved, 1 that every rollout solved" in mixed
    assert [record.levelname for record in caplog.records] == ["INFO", "WARNING"]


async def test_a_run_that_learns_nothing_says_so_at_its_end(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    broken = [{"service": "saying:Broken", "harness": "platoon-react"}]
    config = loaded(tmp_path, train__max_training_steps=2, environments=broken, eval__every=0, eval__at_start=False)
    assert (await train_run(config)).status == "finished"
    warnings = [record.getMessage() for record in caplog.records if record.name == "platoon.train"]
    idle = "step 1 updated nothing: of 3 groups 3 without a completed rollout (rollouts by outcome: 12 error)"
    assert idle in warnings
    assert any(text.startswith("none of the 2 steps") for text in warnings)
