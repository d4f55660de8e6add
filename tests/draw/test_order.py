"""Static orders against golden vectors, and what any order must hold."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from platoon.draw.order import EntryUniform, FairOrder, ListingOrder, RunUniform, decision_key
from platoon.draw.pool import PoolRow, TaskPool
from platoon.draw.samplers.sampling import Pick, build_sampling
from platoon.draw.samplers.settings import EntrySampling, SamplingSettings


def mixture(sizes: dict[str, list[str]]) -> TaskPool:
    return TaskPool([PoolRow(name, entry, entry) for entry, names in sizes.items() for name in names])


def drawn(pool: TaskPool, entries: list[EntrySampling], count: int) -> list[str]:
    sampling = build_sampling(SamplingSettings(batch_size=2, entries=tuple(entries), task_sampler="weighted"), pool)
    picks = [sampling.take(position) for position in range(count)]
    return [pool[pick.row_index].task_id for pick in picks if isinstance(pick, Pick)]


@pytest.mark.parametrize(
    ("size", "passes"),
    [
        (5, [[4, 2, 3, 1, 0], [4, 1, 2, 3, 0], [2, 3, 1, 4, 0]]),
        (7, [[3, 2, 6, 4, 1, 5, 0], [2, 6, 4, 5, 1, 3, 0]]),
    ],
)
def test_run_uniform_golden(size: int, passes: list[list[int]]) -> None:
    order = RunUniform(size)
    for number, rows in enumerate(passes):
        assert [order.row(number * size + offset) for offset in range(size)] == rows


def test_weighted_by_tasks_golden() -> None:
    pool = mixture({"a": ["a0", "a1", "a2"], "b": ["b0", "b1"], "c": ["c0"]})
    entries = [EntrySampling("a"), EntrySampling("b"), EntrySampling("c")]
    golden = "a0 b0 c0 a2 b1 a1 a1 b0 c0 a0 b1 a2 a0 b1 c0 a2 b0 a1"
    assert drawn(pool, entries, 18) == golden.split()


def test_weighted_by_numbers_and_seeds_golden() -> None:
    pool = mixture({"a": ["a0", "a1", "a2"], "b": ["b0", "b1"], "c": ["c0"]})
    entries = [EntrySampling("a", 1.0, 3), EntrySampling("b", 1.0, 5), EntrySampling("c", 2.0, 0)]
    golden = "c0 a1 b0 c0 c0 a2 b1 c0 c0 a0 b0 c0 c0 a1 b1 c0"
    assert drawn(pool, entries, 16) == golden.split()


def test_an_entry_without_tasks_does_not_count_golden() -> None:
    pool = mixture({"q": ["q", "r", "s"], "h": ["h", "i", "j"]})
    entries = [EntrySampling("q", 0.7), EntrySampling("e", 5.0), EntrySampling("h", 0.3)]
    golden = "q h s r j r q s i q s h r r i s q s j r"
    assert drawn(pool, entries, 20) == golden.split()


@pytest.mark.parametrize(
    ("seed", "name", "decision", "key"),
    [
        (0, "auto", 0, 152314823938712593378695934834340152470),
        (0, "pass_rate", 0, 151214092431205209022191135856336717275),
        (7, "pass_rate@hard", 12, 136056986133311555129075637603389438203),
    ],
)
def test_decision_keys_golden(seed: int, name: str, decision: int, key: int) -> None:
    assert decision_key(seed, name, decision) == key


@given(st.integers(1, 40), st.integers(0, 5), st.integers(0, 4))
@settings(max_examples=40)
def test_every_pass_draws_every_row_once(size: int, seed: int, number: int) -> None:
    for order in (RunUniform(size), EntryUniform(size, seed, 2)):
        rows = [order.row(number * size + offset) for offset in range(size)]
        assert sorted(rows) == list(range(size))


@given(
    st.lists(st.floats(0.05, 20), min_size=1, max_size=6),
    st.lists(st.integers(0, 120), min_size=1, max_size=20),
)
@settings(max_examples=60)
def test_fair_order_is_a_function_of_the_slot(weights: list[float], slots: list[int]) -> None:
    fresh, jumping = FairOrder(weights), FairOrder(weights)
    straight = [fresh.entry(slot) for slot in range(121)]
    assert [jumping.entry(slot) for slot in slots] == [straight[slot] for slot in slots]
    for entry, share in enumerate(fresh.shares):  # no entry is ever a whole turn of all entries off its share
        assert abs(straight[:120].count(entry) - share * 120) <= len(weights)


def test_listing_order_repeats_whole_batches() -> None:
    order = ListingOrder(7, 3)
    assert [order.row(decision) for decision in range(8)] == [0, 1, 2, 3, 4, 5, 0, 1]
    with pytest.raises(ValueError, match=r"batch_size: 8 is more than the 7"):
        ListingOrder(7, 8)
