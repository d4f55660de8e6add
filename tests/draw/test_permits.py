"""The permit pool: first come, first served, and never more than its capacity."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from platoon.draw.permits import PermitPool, Reservation


def test_a_rolling_head_takes_what_is_free_and_a_whole_one_waits_for_all() -> None:
    pool = PermitPool(4)
    first = pool.reserve(3, rolling=False)
    rolling, whole, small = pool.reserve(3, rolling=True), pool.reserve(2, rolling=False), pool.reserve(1, rolling=True)
    assert [claim.granted for claim in (first, rolling, whole, small)] == [3, 1, 0, 0]
    assert (rolling.startable, whole.startable) == (True, False)
    first.give_back(2)
    assert [rolling.granted, whole.granted, small.granted] == [3, 0, 0]
    first.give_back(1)
    assert [whole.granted, small.granted] == [0, 0], "one is free, the head needs two, nothing overtakes it"
    rolling.give_back(1)
    assert [whole.granted, small.granted] == [2, 0]


def test_closing_leaves_the_queue_and_returns_what_is_held_once() -> None:
    pool = PermitPool(3)
    first, second, third = (pool.reserve(2, rolling=True) for _ in range(3))
    assert [first.granted, second.granted, third.granted] == [2, 1, 0]
    second.close()
    second.close()
    assert (third.granted, pool.queued) == (1, 1)
    first.close()
    third.close()
    assert (pool.free, pool.queued) == (3, 0)


def test_a_withdrawn_head_lets_the_next_one_in() -> None:
    pool = PermitPool(4)
    pool.reserve(2, rolling=False)
    large, small = pool.reserve(4, rolling=False), pool.reserve(2, rolling=False)
    assert small.granted == 0
    large.close()
    assert small.granted == 2


def test_claims_that_can_never_be_met_are_refused() -> None:
    with pytest.raises(ValueError, match="max_concurrent_rollouts is 0"):
        PermitPool(0)
    with pytest.raises(ValueError, match="group of 5 rollouts does not fit max_concurrent_rollouts: 4"):
        PermitPool(4).reserve(5, rolling=True)
    claim = PermitPool(4).reserve(2, rolling=True)
    with pytest.raises(ValueError, match="cannot give back 3 permits: 2 are held"):
        claim.give_back(3)


@given(
    st.integers(1, 6),
    st.lists(st.tuples(st.sampled_from(["reserve", "give", "close"]), st.integers(0, 9)), max_size=60),
)
@settings(max_examples=80)
def test_grants_keep_the_order_of_claims(capacity: int, steps: list[tuple[str, int]]) -> None:
    heard: list[int] = []
    pool = PermitPool(capacity, heard.append)
    claims: list[Reservation] = []
    for what, number in steps:
        if what == "reserve":
            claims.append(pool.reserve(1 + number % capacity, rolling=number % 2 == 0))
        elif claims and what == "give":
            claim = claims[number % len(claims)]
            claim.give_back(min(1, claim.held))
        elif claims:
            claims.pop(number % len(claims)).close()
        assert sum(claim.held for claim in claims) == pool.in_use == sum(heard) <= capacity
        unmet = [claim for claim in claims if claim.granted < claim.size]
        assert len(unmet) == pool.queued
        assert all(claim.granted == 0 for claim in unmet[1:]), "only the head is partly granted"
        if unmet and pool.free:
            assert not unmet[0].rolling
            assert unmet[0].size > pool.free
