from __future__ import annotations

import pytest

from platoon.config import ConfigError
from platoon.rollout.programs import get_program, program
from platoon.testing.episodes import EpisodeRun, run_episode
from tests.rollout import programs_here

COUNTING = "python://tests.envs.worlds:Counting"


async def play(name: str) -> EpisodeRun:
    return await run_episode(
        "train:0", service=COUNTING, harness="tests.rollout.loops:finishes", program=name, policy=["hi"] * 3
    )


@pytest.mark.parametrize(
    "reference", ["acme-halved", "acme-halved@1", "acme-halved@1.2", "tests.rollout.programs_here:halved"]
)
async def test_a_program_decides_the_outcome(reference: str) -> None:
    run = await play(reference)
    assert run.reward == run.root.reward == 0.5
    assert run.root.misc["harness"]["program"] == reference


async def test_a_program_may_play_another_harness_and_look_at_what_is_there() -> None:
    run = await play("tests.rollout.programs_here:with_another_harness")
    assert run.reward == 1.0
    assert run.root.finish_message == "bye"


@pytest.mark.parametrize(
    ("name", "kind"),
    [("runs_twice", "RuntimeError"), ("grades_first", "RuntimeError"), ("returns_a_number", "TypeError")],
)
async def test_a_program_that_goes_wrong_is_an_error(name: str, kind: str) -> None:
    run = await play(f"tests.rollout.programs_here:{name}")
    assert (run.outcome.status, run.outcome.failure_kind, run.reward) == ("error", f"unexpected:{kind}", None)
    assert run.root.interrupted


async def test_finalizers_see_the_built_collection_once_each_in_order() -> None:
    run = await play("tests.rollout.programs_here:finalized")
    assert run.root.misc["notes"] == ["sync", "async"]
    assert run.reward == 1.0


async def test_a_finalizer_that_raises_leaves_an_error_and_none_of_its_changes() -> None:
    run = await play("tests.rollout.programs_here:badly_finalized")
    assert (run.outcome.status, run.outcome.failure_kind) == ("error", "finalizer:LookupError")
    assert run.root.misc["outcome"]["failure_kind"] == "finalizer:LookupError"
    assert "notes" not in run.root.misc


@pytest.mark.parametrize(
    ("reference", "text"),
    [
        ("singel", "did you mean single"),
        ("acme-halved@2", "no such version"),
        ("tests.rollout.programs_here:nothing", "no attribute"),
        ("tests.rollout.test_programs:COUNTING", "cannot be called"),
    ],
)
def test_what_a_reference_does_not_name(reference: str, text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        get_program(reference)


@pytest.mark.parametrize(("name", "text"), [("single", "reserved"), ("platoon-x", "reserved"), ("Acme", "lower-case")])
def test_names_follow_the_rules(name: str, text: str) -> None:
    with pytest.raises(ValueError, match=text):
        program(name)(programs_here.runs_twice)


def test_a_name_belongs_to_one_function() -> None:
    assert program("acme-halved", version="1.2")(programs_here.halved) is programs_here.halved
    with pytest.raises(ValueError, match="already registered"):
        program("acme-halved", version="1.2")(programs_here.runs_twice)
