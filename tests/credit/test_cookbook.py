"""tinker-cookbook's datums and advantages, and ours, from the same rollouts; runs where the extra `tinker` is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from platoon.credit import CreditSettings, Datum, MemberRollout, credit_group
from platoon.rollout.outcome import Outcome
from platoon.rollout.trajectory import Interaction, Interactions, TrajectoryCollection
from tests.credit.rollouts import trajectory

pytest.importorskip("tinker_cookbook", reason="needs the extra: pip install 'platoon[tinker]'")

import tinker
from tinker_cookbook.completers import TokensWithLogprobs
from tinker_cookbook.rl import data_processing
from tinker_cookbook.rl import types as cookbook

Group = list["Rollout"]


@dataclass(frozen=True)
class Call:
    """One model call; `continues`: its prompt is everything before it, then `suffix`."""

    suffix: list[int]
    sampled: list[int]
    logprobs: list[float]
    continues: bool


@dataclass(frozen=True)
class Rollout:
    """One agent's calls. `by_reference`: our record stores a continued prompt as its suffix alone."""

    calls: list[Call]
    reward: float
    by_reference: bool

    def prompts(self) -> list[list[int]]:
        """Every call's whole prompt."""
        found: list[list[int]] = []
        for index, call in enumerate(self.calls):
            before = [*found[-1], *self.calls[index - 1].sampled] if index and call.continues else []
            found.append(before + call.suffix)
        return found


def f32(low: float, high: float) -> st.SearchStrategy[float]:
    return st.floats(low, high, width=32)


@st.composite
def calls(draw: st.DrawFn) -> Call:
    """Few token ids, so that restarts also happen to continue; a prompt holds at least one token."""
    sampled = draw(st.lists(st.integers(0, 2), min_size=1, max_size=4))
    logprobs = draw(st.lists(f32(-20, 0), min_size=len(sampled), max_size=len(sampled)))
    suffix = draw(st.lists(st.integers(0, 2), min_size=1, max_size=5))
    return Call(suffix, sampled, logprobs, draw(st.booleans()))


rollouts = st.builds(Rollout, st.lists(calls(), min_size=1, max_size=5), f32(-1, 1), st.booleans())
groups = st.lists(rollouts, min_size=1, max_size=4)


def ours(rollout: Rollout) -> MemberRollout:
    """The rollout as the gateway records it: a root agent with a scored outcome."""
    interactions, last = Interactions(), None
    for index, (call, prompt) in enumerate(zip(rollout.calls, rollout.prompts(), strict=True)):
        refers = last is not None and call.continues and rollout.by_reference
        interactions.add(
            f"c{index}",
            Interaction(
                suffix_S=np.array(call.suffix if refers else prompt, np.int32),
                tokens_A=np.array(call.sampled, np.int32),
                logprobs_A=np.array(call.logprobs, np.float32),
                version=0,
                continues=last if refers else None,
            ),
        )
        last = f"c{index}"
    collection = TrajectoryCollection("c", {"root": trajectory("root", list(interactions), rollout.reward)})
    outcome = Outcome("scored", {"reward": rollout.reward}, primary="reward")
    return MemberRollout(collection, interactions, outcome, "completed", 1.0)


def theirs(group: Group) -> list[tinker.Datum]:
    """The cookbook's datums of the group, rewards given once an episode ends."""
    trajectories = [
        cookbook.Trajectory(
            transitions=[
                cookbook.Transition(
                    ob=tinker.ModelInput.from_ints(prompt),
                    ac=TokensWithLogprobs(tokens=call.sampled, maybe_logprobs=call.logprobs),
                    reward=0.0,
                    episode_done=call is rollout.calls[-1],
                )
                for call, prompt in zip(rollout.calls, rollout.prompts(), strict=True)
            ],
            final_ob=tinker.ModelInput.from_ints([]),
        )
        for rollout in group
    ]
    found = cookbook.TrajectoryGroup(trajectories, [r.reward for r in group], [{} for _ in group])
    (advantages,) = data_processing.compute_advantages([found])
    return [
        datum
        for made, advantage in zip(trajectories, advantages.tolist(), strict=True)
        for datum in data_processing.trajectory_to_data(made, advantage)
    ]


def credited(group: Group) -> list[Datum]:
    settings = CreditSettings(group_size=len(group), filter_errors=False)
    return credit_group([ours(rollout) for rollout in group], settings, task_id="t").datums


def same(datum: Datum, other: tinker.Datum) -> None:
    """Tokens, logprobs and mask exactly; advantages to the rounding of a float32 mean of rewards within [-1, 1]."""
    inputs = {name: np.array(data.data) for name, data in other.loss_fn_inputs.items()}
    assert set(inputs) == {"target_tokens", "logprobs", "advantages", "mask"}
    assert datum.tokens_T.tolist() == other.model_input.to_ints()
    assert datum.targets_T.tolist() == inputs["target_tokens"].tolist()
    assert datum.logprobs_T.tolist() == inputs["logprobs"].tolist()
    assert datum.mask_T.tolist() == inputs["mask"].tolist()
    np.testing.assert_allclose(datum.advantages_T, inputs["advantages"], rtol=0, atol=5e-7)


@settings(max_examples=60, deadline=None)
@given(groups)
def test_a_group_gives_the_datums_of_the_cookbook(group: Group) -> None:
    found, expected = credited(group), theirs(group)
    assert len(found) == len(expected)
    for datum, other in zip(found, expected, strict=True):
        same(datum, other)


def conversation(continues: Sequence[bool], reward: float) -> Rollout:
    made = [Call([9 - i, 1], [2, 3], [-0.5, -0.25], c) for i, c in enumerate(continues)]
    return Rollout(made, reward, by_reference=True)


@pytest.mark.parametrize(
    ("continues", "datums"), [([True] * 3, 1), ([True, True, False], 2), ([False] * 3, 3)], ids=str
)
def test_extension_and_breaks(continues: list[bool], datums: int) -> None:
    group = [conversation(continues, 1.0), conversation([True], 0.0)]
    found, expected = credited(group), theirs(group)
    assert len(found) == len(expected) == datums + 1
    for datum, other in zip(found, expected, strict=True):
        same(datum, other)
    assert {float(a) for datum in found for a in datum.advantages_T} == {0.5, -0.5, 0.0}
