"""The bound that simulated runs are measured against."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from platoon.draw.dispatcher import Dispatcher, DispatchSettings
from platoon.draw.ideal import Load, least_seconds, utilisation
from platoon.draw.pool import PoolRow, TaskPool
from platoon.draw.samplers.sampling import build_sampling
from platoon.draw.samplers.settings import EntrySampling, SamplingSettings
from platoon.draw.simulate import Simulation, simulate


def ends(load: Load, *, rolling: bool) -> list[float]:
    pool = TaskPool([PoolRow(f"t{index}") for index in range(len(load.seconds_NG))])
    run = SamplingSettings(load.batch_size, (EntrySampling("default"),), listing_ordered=True)
    bounds = DispatchSettings(load.batch_size, load.seconds_NG.shape[1], load.max_staleness)
    steps = len(load.seconds_NG) // load.batch_size
    dispatcher = Dispatcher(pool, build_sampling(run, pool), bounds, start=1, steps_left=steps)
    durations = load.seconds_NG.tolist()
    what = Simulation(lambda draw: durations[draw.position], load.update_seconds, load.permits, rolling)
    return [step.done_at for step in simulate(dispatcher, what).steps]


@given(
    st.integers(0, 1000), st.integers(1, 4), st.integers(0, 3), st.integers(3, 12), st.floats(0.0, 5.0), st.booleans()
)
@settings(max_examples=60, deadline=None)
def test_no_run_is_faster(seed: int, batch: int, ahead: int, permits: int, update: float, rolling: bool) -> None:
    seconds = np.random.default_rng(seed).lognormal(0.0, 1.5, (batch * 6, 3))
    load = Load(seconds, batch, ahead, permits, update)
    assert all(np.array(ends(load, rolling=rolling)) >= least_seconds(load) - 1e-9)


def test_equal_rollouts_without_staleness_reach_it() -> None:
    load = Load(np.full((8, 2), 3.0), 4, 0, 8, 1.0)
    assert ends(load, rolling=True) == [4.0, 8.0]
    assert least_seconds(load).tolist() == [4.0, 8.0]
    assert utilisation(load, 8.0) == 0.75


def test_a_long_tailed_load_is_kept_busy() -> None:
    seconds = np.random.default_rng(0).lognormal(0.0, 1.0, (150 * 8, 4))
    load = Load(seconds, 8, 3, 8 * 4 * 4 // 3, 0.5)
    best, rolling, whole = least_seconds(load)[-1], ends(load, rolling=True)[-1], ends(load, rolling=False)[-1]
    assert rolling <= best / 0.9
    assert whole > 1.3 * rolling


def test_batches_must_be_whole() -> None:
    with pytest.raises(ValueError, match="no whole number of batches"):
        least_seconds(Load(np.ones((5, 2)), 2, 0, 4, 1.0))
