"""`pass_rate`: its rules, scores and caps; its random numbers are ours."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from platoon.config import ConfigError
from platoon.draw.pool import PoolRow, TaskPool
from platoon.draw.samplers.checks import check_sampling
from platoon.draw.samplers.hosted import OPEN, Scene
from platoon.draw.samplers.sampling import Pick, Sampling, build_sampling
from platoon.draw.samplers.settings import EntrySampling, SamplingSettings
from platoon.draw.view import TaskStatsView
from platoon.stats.schema import EntryInfo, GroupRecord, MemberResult
from platoon.stats.store import TaskStatsStore

SCORES = {5: 0.5957798935464059, 4: 0.5957798935464059, 1: 0.7690537216385429, 0: 0.4184328246234399}
SCORES[3] = 0.47236919219438855


def group(seq: int, task: str, passes: int, version: int, size: int = 4) -> GroupRecord:
    members = tuple(
        MemberResult(float(i < passes), float(i < passes), True, "scored", "ok", versions={"main": (version, version)})
        for i in range(size)
    )
    verdict = "trained" if 0 < passes < size else "uniform"
    return GroupRecord(1, seq, task, "hard", {}, size, "auto", "order", seq, {"main": version}, members, verdict)


def run_settings(**options: Any) -> SamplingSettings:
    return SamplingSettings(2, (EntrySampling("hard", group_size=4),), "pass_rate", options)


def pool_of(count: int = 6) -> TaskPool:
    return TaskPool([PoolRow(f"hard::{i}", "hard", f"l{i % 2}") for i in range(count)])


def seen_store(pool: TaskPool) -> TaskStatsStore:
    store = TaskStatsStore([(r.task_id, r.entry, r.label) for r in pool.rows], {"hard": EntryInfo(4, name="hard")})
    for seq, (task, passes, version) in enumerate([(0, 0, 0), (1, 1, 0), (2, 2, 1), (3, 4, 1), (1, 2, 2)]):
        store.settle(group(seq, f"hard::{task}", passes, version))
    return store


def sampling_of(store: TaskStatsStore, pool: TaskPool, now: int = 3, **options: Any) -> Sampling:
    return build_sampling(run_settings(**options), pool, TaskStatsView(store, lambda: now))


def draws(sampling: Sampling, count: int, scene: Scene | None = None) -> list[Pick]:
    picks = [sampling.ask(None, scene or Scene(version=3)) for _ in range(count)]
    return [pick for pick in picks if pick is not None]


def test_scores_and_caps_are_those_of_platoon_0_4() -> None:
    pool = pool_of()
    sampling = sampling_of(seen_store(pool), pool)
    picks = draws(sampling, 60)
    assert len(picks) == 60
    for pick in picks:
        assert pick.score == pytest.approx(SCORES.get(pick.row_index, pick.score), rel=1e-12)
        assert pick.reason in ("explore", "exploit")
    for window in range(10):
        counts = Counter(pick.row_index for pick in picks[6 * window : 6 * window + 6])
        assert max(counts.values()) <= 3
    assert 0.05 < sum(pick.reason == "explore" for pick in picks) / 60 < 0.4


def test_metrics_of_a_step() -> None:
    pool = pool_of()
    store = seen_store(pool)
    sampling = sampling_of(store, pool)
    picks = draws(sampling, 12)
    metrics = sampling.metrics()
    priors = [2.0 / sum(store.posterior(f"hard::{pick.row_index}", now=3)) for pick in picks]
    assert metrics["sampler/prior_share"] == pytest.approx(sum(priors) / 12)
    last = Counter(pick.row_index for pick in picks[6:])
    assert metrics["sampler/top10_share"] == max(last.values()) / 6
    newest = {0: 0, 1: 2, 2: 1, 3: 1}
    ages = [3 - newest[pick.row_index] for pick in picks if pick.row_index in newest]
    assert metrics["sampler/evidence_age"] == pytest.approx(sum(ages) / len(ages))
    assert metrics["sampler/cap_lifted"] == 0.0
    assert "sampler/eligible_share" not in sampling.metrics(), "each step starts anew"


def test_the_metrics_of_platoon_0_4s_draws_are_its_own() -> None:
    """Its sequence of draws, each forced by closing all other labels."""
    pool = TaskPool([PoolRow(f"hard::{i}", "hard", str(i)) for i in range(6)])
    sampling = sampling_of(seen_store(pool), pool)
    for task in (5, 1, 5, 1, 4, 1, 0, 1, 3, 5, 5, 4):
        (pick,) = draws(sampling, 1, Scene(version=3, closed=frozenset(str(i) for i in range(6) if i != task)))
        assert pick.score == pytest.approx(SCORES[task], rel=1e-12)
    metrics = sampling.metrics()
    assert metrics["sampler/prior_share"] == pytest.approx(0.6265740149416265, rel=1e-12)
    assert (metrics["sampler/evidence_age"], metrics["sampler/cap_lifted"]) == (1.5, 0.0)
    assert metrics["sampler/top10_share"] == 1 / 3


def test_a_task_whose_first_group_is_out_waits() -> None:
    pool = pool_of()
    store = seen_store(pool)
    store.draw(1, 10, "hard::4", 10)
    picks = draws(sampling_of(store, pool), 40)
    assert 4 not in {pick.row_index for pick in picks}
    for seq in range(6):
        store.draw(2, seq, f"hard::{seq}", seq)
    only = draws(sampling_of(store, pool, max_outstanding_per_task=1, max_draws_per_epoch=None), 40)
    assert {pick.row_index for pick in only} == {0, 1, 2, 3}, "none is below the limit: those with the fewest out"


def test_exploring_goes_round_the_tasks_drawn_longest_ago() -> None:
    pool = pool_of()
    picks = draws(sampling_of(seen_store(pool), pool, explore=1.0), 24)
    for turn in range(4):
        assert sorted(pick.row_index for pick in picks[6 * turn : 6 * turn + 6]) == list(range(6))
    assert {pick.reason for pick in picks} == {"explore"}


def test_tasks_without_evidence_are_only_explored() -> None:
    pool = pool_of()
    store = seen_store(pool)
    for seq in range(20, 23):
        store.settle(GroupRecord(1, seq, "hard::1", "hard", {}, 4, "auto", "order", 0, {"main": 3}, (), "failed"))
    picks = draws(sampling_of(store, pool, max_draws_per_epoch=None), 60)
    assert all(pick.reason == "explore" for pick in picks if pick.row_index == 1)


def test_a_full_window_lifts_the_cap() -> None:
    pool = pool_of()
    closed = Scene(version=3, closed=frozenset({"l1"}))
    sampling = sampling_of(seen_store(pool), pool, max_draws_per_epoch=1)
    picks = draws(sampling, 6, closed)
    assert {pick.row_index % 2 for pick in picks} == {0}
    assert sampling.metrics()["sampler/cap_lifted"] == 0.5


def test_nothing_eligible_decides_nothing() -> None:
    pool = pool_of()
    sampling = sampling_of(seen_store(pool), pool)
    assert sampling.ask(None, Scene(closed=frozenset({"l0", "l1"}))) is None
    assert sampling.run.decisions == 0


def test_few_candidates_are_scored_in_a_large_pool() -> None:
    pool = pool_of(50)
    store = TaskStatsStore([(r.task_id, r.entry, r.label) for r in pool.rows], {"hard": EntryInfo(4, name="hard")})
    picks = draws(sampling_of(store, pool, candidates=5), 40)
    assert len({pick.row_index for pick in picks}) > 5


@given(st.integers(0, 30), st.integers(0, 3))
@settings(max_examples=25)
def test_a_saved_state_goes_on_alike(before: int, seed: int) -> None:
    pool = pool_of()
    store = seen_store(pool)
    straight = sampling_of(store, pool, seed=seed)
    draws(straight, before)
    saved = json.loads(json.dumps(straight.state(), allow_nan=False))
    again = sampling_of(store, pool, seed=seed)
    assert again.load_state(saved, before) == []
    assert again.state() == saved
    assert draws(again, 20) == draws(straight, 20)


@pytest.mark.parametrize(
    "broken", [{"window": -1}, {"last_drawn": []}, {"window_draws": {"hard::0": True}}, {"previous_window_draws": None}]
)
def test_a_broken_state_starts_afresh(broken: dict[str, Any]) -> None:
    pool = pool_of()
    sampling = sampling_of(seen_store(pool), pool)
    draws(sampling, 8)
    saved = sampling.state()
    saved["run"]["state"] |= broken
    again = sampling_of(seen_store(pool), pool)
    assert "does not load" in again.load_state(saved, 8)[0]
    fresh = sampling_of(seen_store(pool), pool).state()["run"]["state"]
    assert again.state()["run"]["state"] == fresh


def test_tasks_that_left_the_pool_leave_the_state() -> None:
    pool = pool_of()
    sampling = sampling_of(seen_store(pool), pool)
    draws(sampling, 8)
    smaller = pool_of(3)
    again = sampling_of(seen_store(smaller), smaller)
    assert again.load_state(sampling.state(), 8) == []
    assert set(again.state()["run"]["state"]["last_drawn"]) <= {"hard::0", "hard::1", "hard::2"}


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"explore": 1.5}, "task_sampler_options.explore: must be between 0 and 1"),
        ({"candidates": 0}, "task_sampler_options.candidates: must be at least 1"),
        ({"explored": 0.1}, "explored: unknown key; did you mean explore"),
        ({"seed": "x"}, "task_sampler_options.seed"),
    ],
)
def test_bad_options_are_named(options: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        check_sampling(run_settings(**options))
    assert said in str(caught.value)


def test_groups_of_one_are_refused() -> None:
    alone = SamplingSettings(2, (EntrySampling("a", group_size=1), EntrySampling("b")), "pass_rate")
    with pytest.raises(ConfigError, match="group_size is 1 for 'a'"):
        check_sampling(alone)
    entry = EntrySampling("a", group_size=1, task_sampler="pass_rate")
    with pytest.raises(ConfigError, match=r"environments\[a\]\.task_sampler: pass_rate needs groups"):
        check_sampling(SamplingSettings(2, (entry, EntrySampling("b")), "weighted"))


def test_the_open_scene_is_version_0() -> None:
    pool = pool_of()
    store = TaskStatsStore([(r.task_id, r.entry, r.label) for r in pool.rows], {"hard": EntryInfo(4, name="hard")})
    pick = sampling_of(store, pool, now=0).ask(None, OPEN)
    assert pick is not None
    assert pick.score == pytest.approx(2 * 0.5 * 0.6)  # alpha = beta = 1, groups of 4: 1 - 2/5
