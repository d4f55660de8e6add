"""The sampling plan and the fingerprint."""

from __future__ import annotations

import json

from platoon.draw.fingerprint import fingerprint, fingerprint_changes, pool_digest
from platoon.draw.plan import Duration, plan_lines, plan_warnings, planned_steps, sampling_plan
from platoon.draw.pool import PoolRow, TaskPool
from platoon.draw.samplers.settings import EntrySampling, SamplingSettings


def pool_of(**sizes: int) -> TaskPool:
    return TaskPool([PoolRow(f"{name}::{i}", name, name) for name, size in sizes.items() for i in range(size)])


def run(*entries: EntrySampling, sampler: str = "auto") -> SamplingSettings:
    return SamplingSettings(4, entries, task_sampler=sampler)


def test_plan_of_a_mixture() -> None:
    settings = run(EntrySampling("easy", 3.0), EntrySampling("none", 1.0), EntrySampling("hard", 1.0))
    plan = sampling_plan(settings, pool_of(easy=6, hard=2), Duration(num_epochs=2, max_training_steps=10))
    assert (plan.epoch_size, plan.batches, plan.steps, plan.slots) == (8, 2, 4, 16)
    assert plan_lines(plan, ["group admission: informative"]) == [
        "sampling: 8 tasks, epoch of 8 draws (2 batches of 4), 4 steps, sampler auto",
        "  easy: 6 tasks, weight 3.0, share 75.0%, 2.00 draws per task over the run",
        "  hard: 2 tasks, weight 1.0, share 25.0%, 2.00 draws per task over the run",
        "group admission: informative",
    ]
    assert plan_warnings(plan) == []


def test_run_uniform_ignores_weights() -> None:
    settings = run(EntrySampling("easy", 3.0), EntrySampling("hard", 97.0), sampler="uniform")
    plan = sampling_plan(settings, pool_of(easy=6, hard=2), Duration())
    assert [entry.share for entry in plan.entries] == [0.75, 0.25]
    assert plan.slots is None
    assert "over the epoch" in plan_lines(plan)[1]


def test_warnings_name_untrained_tasks_and_uneven_repeats() -> None:
    settings = run(EntrySampling("easy", 0.01), EntrySampling("hard", 0.99))
    plan = sampling_plan(settings, pool_of(easy=6, hard=2), Duration(max_training_steps=3))
    untrained, uneven = plan_warnings(plan)
    assert "'easy'" in untrained
    assert "never train" in untrained
    assert "'hard' repeat 297.0 times" in uneven


def test_planned_steps() -> None:
    assert planned_steps(5, Duration()) is None
    assert planned_steps(5, Duration(num_epochs=3)) == 15
    assert planned_steps(5, Duration(num_epochs=3, max_training_steps=7)) == 7


def test_pool_digest_golden() -> None:
    assert pool_digest([f"easy::{i}" for i in range(6)]) == "fea197a9c1162a38"
    assert pool_digest([f"hard::{i}" for i in range(3)]) == "672c49d9754fd136"


def test_fingerprint_names_seeds_only_where_they_act() -> None:
    pool = pool_of(easy=6, hard=3)
    mixture = fingerprint(run(EntrySampling("easy", seed=4), EntrySampling("hard", 2.0)), pool)
    assert mixture == {
        "task_sampler": "auto",
        "batch_size": 4,
        "label_by": "_platoon_environment",
        "order": ["easy", "hard"],
        "entries": {
            "easy": {"weight": "tasks", "tasks": 6, "pool": "fea197a9c1162a38", "seed": 4},
            "hard": {"weight": 2.0, "tasks": 3, "pool": "672c49d9754fd136", "seed": 0},
        },
    }
    assert "seed" not in fingerprint(run(EntrySampling("easy", seed=4)), pool)["entries"]["easy"]
    assert json.loads(json.dumps(mixture)) == mixture


def test_fingerprint_changes_are_named() -> None:
    saved = fingerprint(run(EntrySampling("easy", seed=4), EntrySampling("hard", 2.0)), pool_of(easy=6, hard=3))
    assert fingerprint_changes(saved, json.loads(json.dumps(saved))) == []
    now = fingerprint(
        run(EntrySampling("hard", 1.0), EntrySampling("new"), EntrySampling("easy"), sampler="weighted"),
        pool_of(easy=6, hard=4, new=1),
    )
    assert fingerprint_changes(saved, now) == [
        "task_sampler: 'auto' became 'weighted'",
        "environment 'new' joined",
        "the order of the environments changed",
        "environment 'easy': seed 4 became 0",
        "environment 'hard': weight 2.0 became 1.0",
        "environment 'hard': 3 tasks became 4",
    ]


def test_other_tasks_of_the_same_count_are_noticed() -> None:
    saved = fingerprint(run(EntrySampling("easy")), pool_of(easy=3))
    now = fingerprint(run(EntrySampling("easy")), TaskPool([PoolRow(f"easy::x{i}", "easy") for i in range(3)]))
    assert fingerprint_changes(saved, now) == ["environment 'easy': same count of 3 tasks, but other tasks"]
