"""Reward processors: their names, what they get, and what a group makes of their reward."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from platoon.config import ConfigError
from platoon.credit import CreditPlugins, CreditSettings, credit_group
from platoon.credit.processors import RewardProcessorError, delegation, get_reward_processor, reward_processor
from platoon.registry import register_reward_processor
from platoon.rollout.trajectory import Trajectory, TrajectoryStep
from tests.credit.rollouts import member


def halved(trajectory: Mapping[str, Any]) -> tuple[float, Mapping[str, float]]:
    return trajectory["reward"] / 2, {"reward/whole": trajectory["reward"]}


def careless(trajectory: Mapping[str, Any]) -> tuple[float, dict[str, float]]:
    return trajectory["nothing"], {}


def broken(trajectory: Mapping[str, Any]) -> float:
    return 1.0


def noted(*notes: dict[str, Any], reward: float = 0.25) -> Trajectory:
    return Trajectory("t", steps=[TrajectoryStep({"reward_misc": note}) for note in notes], reward=reward)


def test_delegation_sums_notes_and_scores_the_success() -> None:
    trajectory = noted(
        {"reward/subagent_launched": 2, "reward/subagent_succeeded": 1.5, "other": 9, "reward/flag": True},
        {"reward/subagent_launched": 1, "reward/success": 0.75},
    )
    score, components = get_reward_processor("platoon-delegation")(trajectory)
    assert score == 0.75
    assert components == {"reward/subagent_launched": 3, "reward/subagent_succeeded": 1.5, "reward/success": 0.75}


def test_delegation_without_notes_is_the_reward() -> None:
    score, components = get_reward_processor("platoon-delegation")(noted())
    assert (score, components["reward/success"]) == (0.25, 0.25)
    assert components["reward/subagent_launched"] == 0.0


def test_processed_rewards_train_and_the_environments_score_is_kept() -> None:
    members = [member(1.0), member(0.0)]
    plugins = CreditPlugins(processor=get_reward_processor(f"{__name__}:halved"))
    output = credit_group(members, CreditSettings(group_size=2), task_id="t", plugins=plugins)
    assert [one.reward for one in output.members] == [0.5, 0.0]
    assert output.rollout_stats.values["root_whole"] == (1.0, 0.0)
    values = {float(value) for datum in output.datums for value in datum.advantages_T}
    assert values == {0.25, 0.0, -0.25}


@pytest.mark.parametrize(
    ("reference", "message"),
    [
        ("platoon-delegatoin", "did you mean platoon-delegation?"),
        ("nowhere.at.all:fn", "cannot be imported"),
        (f"{__name__}:CreditSettings.__doc__", "cannot be called"),
    ],
)
def test_unusable_references_are_config_errors(reference: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message.replace("?", r"\?")):
        get_reward_processor(reference)


def test_a_wrong_return_value_is_an_error_not_a_reward() -> None:
    with pytest.raises(TypeError, match=r"returned 1\.0, not \(score, components\)"):
        get_reward_processor(f"{__name__}:broken")(noted())


def test_what_a_processor_raises_names_it() -> None:
    with pytest.raises(RewardProcessorError, match=f"reward processor {__name__}:careless raised KeyError: 'nothing'"):
        get_reward_processor(f"{__name__}:careless")(noted())


def test_names_are_kept_apart() -> None:
    with pytest.raises(ValueError, match="reserved"):
        reward_processor("platoon-mine")(halved)
    assert reward_processor("halved-in-tests")(halved) is halved
    assert get_reward_processor("halved-in-tests")(noted(reward=1.0)) == (0.5, {"reward/whole": 1.0})
    with pytest.raises(ValueError, match="already registered"):
        reward_processor("halved-in-tests")(delegation)


def test_a_processor_is_also_found_by_its_dotted_path_and_in_the_registry() -> None:
    expected = (0.5, {"reward/whole": 1.0})
    assert get_reward_processor(f"{__name__}.halved")(noted(reward=1.0)) == expected
    register_reward_processor("halved-by-registry", halved)
    assert get_reward_processor("halved-by-registry")(noted(reward=1.0)) == expected
    with pytest.raises(ConfigError, match="no reward processor is named 'no_such_module_here"):
        get_reward_processor("no_such_module_here.halved")
