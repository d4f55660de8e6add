"""Decisions stay fast with many tasks and many outstanding draws."""

from __future__ import annotations

import json
import statistics
import time

from platoon.draw.dispatcher import Dispatcher, DispatchSettings
from platoon.draw.pool import PoolRow, TaskPool
from platoon.draw.records import Draw, Start
from platoon.draw.samplers.sampling import build_sampling
from platoon.draw.samplers.settings import EntrySampling, SamplingSettings

BOUNDS = DispatchSettings(batch_size=1024, group_size=8, max_staleness=3, limits={"env0": 128})


def dispatcher(pool: TaskPool, start: int) -> Dispatcher:
    entries = tuple(EntrySampling(f"env{index}", 1.0 + index) for index in range(8))
    sampling = build_sampling(SamplingSettings(1024, entries), pool)
    return Dispatcher(pool, sampling, BOUNDS, start=start, steps_left=1000)


def test_a_decision_takes_under_a_millisecond_and_a_resume_restores_thousands() -> None:
    pool = TaskPool([PoolRow(f"env{i % 8}::{i}", f"env{i % 8}", f"env{i % 8}") for i in range(100_000)])
    machine = dispatcher(pool, 1)
    times: list[float] = []
    running: list[Draw] = []
    while machine.in_use < 4_000 or len(times) < 8_000:
        before = time.perf_counter()
        decision = machine.choose()
        times.append(time.perf_counter() - before)
        if isinstance(decision, Start):
            running.append(decision.draw)
            continue
        taken, running = running[:1024], running[1024:]
        for draw in taken:
            machine.settled(draw.key)
            machine.dequeued(draw.key)
        machine.commit({draw.key: "consumed" for draw in taken})
        machine.step_started()
    assert statistics.median(times) < 1e-3
    state = json.loads(json.dumps(machine.state()))
    assert len(state["outstanding"]) >= 4_000
    successor = dispatcher(pool, 2)
    assert len(successor.load_state(state).records) == len(state["outstanding"])
    assert sorted(row[3] for row in successor.state()["outstanding"]) == sorted(row[3] for row in state["outstanding"])
