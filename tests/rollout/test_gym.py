from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import platoon as pt
from platoon.config import load
from platoon.config.entries import OnHarnessExit
from platoon.harness.registry import FunctionHarness, get_harness
from platoon.rollout.components import resolve_entries
from platoon.testing.episodes import EpisodeRun, run_episode
from platoon.testing.policy import ScriptedPolicy
from tests.envs import games

COUNTING = "python://tests.envs.worlds:Counting"
GRADE = OnHarnessExit(timeout="grade", crash="grade")


async def play(env: Any, policy: Any, **settings: Any) -> EpisodeRun:
    keys = {"max_turns": settings.pop("max_turns", None), "system": settings.pop("system", None)}
    harness = FunctionHarness("acme-loop", "1", "inline", False, pt.gym.loop(env, **keys))
    return await run_episode(
        "train:0", policy=policy, **{"service": COUNTING, "program": "gym", **settings, "harness": harness}
    )


async def test_replies_are_actions_and_observations_are_the_next_messages() -> None:
    before = games.COUNTS.copy()
    policy = ScriptedPolicy(["9", "five", "7"])
    run = await play(games.Guess, policy, system="You guess.")
    assert (run.outcome.status, run.reward, run.root.reward) == ("scored", 0.5, 0.5)
    assert run.root.misc["gym_return"] == 0.5
    assert [step.misc["gym"] for step in run.root.steps] == [
        {"action": "9", "observation": "Lower.", "reward": -0.25},
        {"action": "five", "observation": "Write a number.", "reward": -0.25},
        {"action": "7", "observation": "Correct!", "reward": 1.0},
    ]
    assert run.root.finish_message == "7"
    assert [call.last_user_message for call in policy.calls] == ["play one", "Lower.", "Write a number."]
    assert "You guess." in policy.prompts[0]
    assert games.COUNTS - before == {"reset": 1, "closed": 1}


@pytest.mark.parametrize("limit", [{"max_turns": 2}, {"max_steps": 2}, {"max_turns": 2, "max_steps": 5}])
async def test_at_the_limit_the_return_so_far_counts(limit: dict[str, int]) -> None:
    run = await play(games.Guess, ["1", "2", "7"], **limit)
    assert run.root.misc["agent_result"]["status"] == "limit"
    assert (run.reward, len(run.interactions)) == (-0.5, 2)


@pytest.mark.parametrize(
    ("harness", "reward"), [("tests.rollout.loops:finishes", 1.0), ("tests.rollout.loops:gives_no_answer", 0.0)]
)
async def test_without_a_return_the_environment_grades(harness: str, reward: float) -> None:
    run = await run_episode("train:0", service=COUNTING, harness=harness, program="gym", policy=["hi"])
    assert run.reward == reward


async def ends(ctx: pt.AgentContext) -> pt.AgentResult:
    """Notes a return of 5 and ends as its option says."""
    ctx.annotate(gym_return=5.0)
    await ctx.chat([{"role": "user", "content": "hello"}])
    return pt.AgentResult(ctx.options["status"])


@pytest.mark.parametrize(
    ("status", "on_exit", "outcome", "reward"),
    [
        ("completed", OnHarnessExit(), "scored", 5.0),
        ("limit", OnHarnessExit(), "scored", 5.0),
        ("timeout", OnHarnessExit(), "timeout", None),
        ("timeout", GRADE, "scored", 0.0),
        ("error", OnHarnessExit(), "error", None),
        ("error", GRADE, "scored", 0.0),
        ("cancelled", GRADE, "cancelled", None),
    ],
)
async def test_which_endings_are_scored_with_the_return(
    status: str, on_exit: OnHarnessExit, outcome: str, reward: float | None
) -> None:
    """The others are graded as with `single`; 0.0 is the grade of a session in which nothing was submitted."""
    run = await run_episode(
        "train:0",
        service=COUNTING,
        harness="tests.rollout.test_gym:ends",
        harness_options={"status": status},
        program="gym",
        policy=["hi"],
        on_harness_exit=on_exit,
    )
    assert (run.outcome.status, run.reward) == (outcome, reward)


@pytest.mark.parametrize(
    ("env", "text"),
    [
        (games.Breaks, "step raised LookupError: the board is gone"),
        (games.giving(TimeoutError("slow board")), "step raised TimeoutError: slow board"),
        (games.giving(("fine", float("nan"), False)), "finite number, not nan"),
        (games.giving(("fine", True, False)), "finite number, not True"),
        (games.giving(("fine", 1.0, False, False, {})), "must give"),
        (games.giving((None, 1.0, True)), "must be text, not None"),
        (games.Unready, "reset raised ConnectionError: no board"),
        (lambda: games.Guess(1), "the factory raised TypeError"),  # type: ignore[call-arg]
    ],
)
@pytest.mark.parametrize("on_exit", [OnHarnessExit(), GRADE])
async def test_an_environment_that_breaks_is_an_error_and_no_reward(
    env: Any, text: str, on_exit: OnHarnessExit
) -> None:
    run = await play(env, ["1", "2"], on_harness_exit=on_exit)
    assert (run.outcome.status, run.outcome.failure_kind, run.reward) == ("error", "env_error", None)
    assert text in str(run.outcome.reason)
    assert run.root.interrupted


async def test_a_close_that_breaks_leaves_what_was_measured() -> None:
    run = await play(games.giving(("done", 2, True)), ["1", "2"])
    assert run.reward == 2.5


async def notes(ctx: pt.AgentContext) -> pt.AgentResult:
    ctx.annotate(gym_return=ctx.options["total"])
    return pt.AgentResult()


@pytest.mark.parametrize("total", ["3", True, float("inf")])
async def test_a_return_that_is_no_number_is_an_error(total: Any) -> None:
    harness, options = "tests.rollout.test_gym:notes", {"total": total}
    run = await run_episode("train:0", service=COUNTING, harness=harness, harness_options=options, program="gym")
    assert (run.outcome.failure_kind, run.reward) == ("unexpected:ValueError", None)
    assert "gym_return" in str(run.outcome.reason)


@pytest.mark.parametrize("turns", [0, -1, True, 1.5])
def test_max_turns_is_checked(turns: Any) -> None:
    with pytest.raises(ValueError, match="max_turns"):
        pt.gym.loop(games.Guess, max_turns=turns)


def test_a_loop_belongs_to_its_environment() -> None:
    assert get_harness("acme-guess").source == "tests.envs.games:loop(Guess)"
    with pytest.raises(ValueError, match="already registered"):
        pt.harness("acme-guess")(pt.gym.loop(games.Breaks))
    with pytest.raises(ValueError, match="reserved"):
        pt.harness("platoon-react")(pt.gym.loop(games.Guess))


def test_a_training_config_with_it_is_valid(tmp_path: Path) -> None:
    file = tmp_path / "train.yaml"
    file.write_text("""
train: {model_name: platoon-tiny, renderer_name: chat_template}
environments:
  - service: python://tests.envs.games:GuessEnvironment
    harness: acme-guess
    package: tests.envs.games
    program: gym
""")
    found = resolve_entries(load(file, kind="train").config.environments, ("train", "eval"))
    assert not found.problems
    assert [(row["kind"], row["ref"], row["source"]) for row in found.records()["components"]] == [
        ("harness", "acme-guess", "tests.envs.games:loop(Guess)"),
        ("program", "gym", "platoon.rollout.programs:gym"),
        ("service", "python://tests.envs.games:GuessEnvironment", "tests.envs.games:GuessEnvironment"),
    ]
