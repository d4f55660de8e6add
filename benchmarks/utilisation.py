"""How busy the permits are kept on a long-tailed workload, against the best that any schedule could do.

Rollouts last a lognormal time; 32 groups of 8 a step, max_staleness 3, and a third of the permits that everything
within the horizon would hold. Under `permit_release: rollout` at least 95 % of the ideal is reached, or the exit status
is 1; the gain over `group` is printed. Run `python benchmarks/utilisation.py`.
"""

from __future__ import annotations

import sys

import numpy as np

from platoon.draw.dispatcher import Dispatcher, DispatchSettings
from platoon.draw.ideal import Load, least_seconds, utilisation
from platoon.draw.pool import PoolRow, TaskPool
from platoon.draw.samplers.sampling import build_sampling
from platoon.draw.samplers.settings import EntrySampling, SamplingSettings
from platoon.draw.simulate import Simulation, simulate

BATCH, GROUP, AHEAD, STEPS = 32, 8, 3, 200
PERMITS = BATCH * GROUP * (AHEAD + 1) // 3
MEDIAN_SECONDS, UPDATE_SECONDS = 60.0, 30.0
BOUND = 0.95


def load_of(seed: int, sigma: float) -> Load:
    rng = np.random.default_rng(seed)
    seconds = MEDIAN_SECONDS * rng.lognormal(0.0, sigma, (STEPS * BATCH, GROUP))
    return Load(seconds, BATCH, AHEAD, PERMITS, UPDATE_SECONDS)


def seconds_of(load: Load, *, rolling: bool) -> float:
    """When the last update ends, with the run's own dispatcher and permits."""
    pool = TaskPool([PoolRow(f"t{index}") for index in range(len(load.seconds_NG))])
    run = SamplingSettings(BATCH, (EntrySampling("default"),), listing_ordered=True)
    settings = DispatchSettings(BATCH, GROUP, AHEAD)
    dispatcher = Dispatcher(pool, build_sampling(run, pool), settings, start=1, steps_left=STEPS)
    durations = load.seconds_NG.tolist()
    what = Simulation(lambda draw: durations[draw.position], UPDATE_SECONDS, PERMITS, rolling)
    return simulate(dispatcher, what).steps[-1].done_at


def main() -> int:
    worst = 1.0
    print(f"{STEPS} steps of {BATCH} groups of {GROUP}, max_staleness {AHEAD}, {PERMITS} permits")
    for sigma in (0.5, 1.0, 1.25):
        for seed in range(2):
            load = load_of(seed, sigma)
            ideal = utilisation(load, float(least_seconds(load)[-1]))
            rollout = utilisation(load, seconds_of(load, rolling=True))
            group = utilisation(load, seconds_of(load, rolling=False))
            worst = min(worst, rollout / ideal)
            print(
                f"sigma {sigma:4} seed {seed}: ideal {ideal:6.1%}   rollout {rollout:6.1%} "
                f"({rollout / ideal:6.1%} of it)   group {group:6.1%}   gain over group {rollout / group:4.2f}x"
            )
    print(f"bound {BOUND:.0%} of the ideal: {'ok' if worst >= BOUND else 'missed'}")
    return 0 if worst >= BOUND else 1


if __name__ == "__main__":
    sys.exit(main())
