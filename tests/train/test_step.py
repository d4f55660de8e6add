"""What one step sends: which groups go into which update and microbatch, and what their advantages are divided by."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from platoon.gateway.sampling import Sampled
from platoon.render import Renderer
from tests.train.running import over_fakes, run_dir
from tests.train.test_loop import alternating, renderer, say, series

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
