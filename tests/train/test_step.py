"""What one step sends: which groups go into which update and microbatch, and what their advantages are divided by."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest

from platoon.gateway.sampling import Sampled, SamplingParams
from platoon.render import Renderer
from tests.train.running import over_fakes, run_dir
from tests.train.test_loop import alternating, asked_word, renderer, say, series

__all__ = ["renderer", "say"]
GROUP = 4


@pytest.mark.parametrize(("minibatches", "microbatches", "seed"), [(2, 2, None), (2, 2, 11), (4, 1, 11), (1, 4, 11)])
async def test_each_update_takes_its_share_of_groups_and_each_microbatch_is_a_mean(
    minibatches: int,
    microbatches: int,
    seed: int | None,
    tmp_path: Path,
    say: Callable[[str], Sampled],
    renderer: Renderer,
) -> None:
    settings = {"train__num_minibatches": minibatches, "train__num_microbatches": microbatches}
    more = {"train__batch_size": 4, "train__sampling_seed": seed, "eval__every": 0}
    async with over_fakes(tmp_path, alternating(say, renderer), **settings, **more) as (run, session):
        assert await run.step() is not None
        state = run.state
        assert state is not None
        assert (state.optimizer_steps, state.policy_version) == (minibatches, 1)
    assert series(run_dir(tmp_path), "train/batch/optimizer_updates") == {1: minibatches}
    assert [len(datums) for datums in session.applied] == [4 // minibatches * GROUP] * minibatches
    places = 4 // minibatches // microbatches * GROUP
    for datums in session.applied:
        for first in range(0, len(datums), places):
            part = datums[first : first + places]
            tokens = sum(datum.action_tokens for datum in part)
            sent = np.concatenate([datum.advantages_T[datum.mask_T > 0] for datum in part])
            assert np.abs(sent) == pytest.approx(0.5 / tokens)


@pytest.mark.parametrize(
    ("mixed", "loss", "filtered", "sent"),
    [
        (0, "cispo", True, 0),  # nothing to learn: neither gradients nor an update
        (0, "cispo", False, 0),
        (0, "dro", True, 3 * GROUP),  # a loss that is not zero at zero advantages
        (1, "cispo", True, GROUP),
        (1, "cispo", False, 3 * GROUP),
    ],
)
async def test_groups_of_equal_rewards_weigh_in_the_mean_and_are_not_sent(
    mixed: int,
    loss: str,
    filtered: bool,
    sent: int,
    tmp_path: Path,
    say: Callable[[str], Sampled],
    renderer: Renderer,
) -> None:
    alternate, seen, tokens = alternating(say, renderer), [], []

    def reply(prompt: Sequence[int], params: SamplingParams, version: int) -> Sampled:
        word = asked_word(renderer.decode(list(prompt)))
        if word not in seen:
            seen.append(word)
        said = alternate(prompt, params, version) if seen.index(word) < mixed else say(word)
        tokens.append(len(said.tokens))
        return said

    workflow = {"group_size": GROUP, "filter_zero_advantage_datums": filtered, "rollout_config": {"max_steps": 1}}
    keys = {"train__loss_fn": loss, "train__loss_fn_config": {}, "train__workflow_config": workflow, "eval__every": 0}
    async with over_fakes(tmp_path, reply, **keys) as (run, session):
        await run.step()
        assert run.state is not None
        assert (run.state.policy_version, run.state.train_step) == (int(sent > 0), 1)
    datums = [datum for update in session.applied for datum in update]
    assert (len(datums), len(session.applied)) == (sent, int(sent > 0))
    advantages = [float(one) for datum in datums for one in datum.advantages_T[datum.mask_T > 0]]
    expected = [0.5 / sum(tokens[: 3 * GROUP])] * bool(mixed)
    assert sorted({abs(one) for one in advantages} - {0.0}) == pytest.approx(expected)
    assert series(run_dir(tmp_path), "train/batch/skipped_optimizer") == {1: float(sent == 0)}
