"""pass@k: the estimator against enumeration, and intervals that do not depend on an order."""

from __future__ import annotations

from itertools import combinations
from statistics import fmean

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from platoon.eval.passk import estimate, ladder, pass_at_k

ATTEMPTS = st.integers(1, 7).flatmap(lambda n: st.tuples(st.just(n), st.integers(0, n), st.integers(1, n)))
COUNTS = st.lists(st.integers(1, 6).flatmap(lambda n: st.tuples(st.just(n), st.integers(0, n))), min_size=1, max_size=8)


@given(ATTEMPTS)
@settings(max_examples=60)
def test_it_is_the_share_of_k_subsets_that_hold_a_success(drawn: tuple[int, int, int]) -> None:
    n, c, k = drawn
    outcomes = [True] * c + [False] * (n - c)
    share = fmean(any(subset) for subset in combinations(outcomes, k))
    assert pass_at_k(n, c, k) == pytest.approx(share)


@given(ATTEMPTS)
@settings(max_examples=60)
def test_pass_at_1_is_the_success_rate_and_more_attempts_never_hurt(drawn: tuple[int, int, int]) -> None:
    n, c, k = drawn
    assert pass_at_k(n, c, 1) == pytest.approx(c / n)
    assert all(pass_at_k(n, c, j) <= pass_at_k(n, c, j + 1) + 1e-12 for j in range(1, n))
    assert pass_at_k(n, c, n) == float(c > 0)
    assert pass_at_k(n, c, k) >= pass_at_k(n, max(c - 1, 0), k)


@pytest.mark.parametrize(("n", "c", "k"), [(2, 0, 3), (2, 3, 1), (2, 1, 0), (0, 0, 1)])
def test_what_does_not_exist_is_refused(n: int, c: int, k: int) -> None:
    with pytest.raises(ValueError, match="does not exist"):
        pass_at_k(n, c, k)


@given(COUNTS, st.randoms(use_true_random=False), st.integers(1, 6))
@settings(max_examples=40, deadline=None)
def test_an_estimate_is_the_same_in_any_order(counts: list[tuple[int, int]], random: object, k: int) -> None:
    one = estimate(counts, k)
    shuffled = list(counts)
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    assert estimate(shuffled, k) == one
    if one is None:
        assert all(n < k for n, _ in counts)
        return
    assert one.low <= one.mean + 1e-12
    assert one.mean <= one.high + 1e-12
    assert one.mean == pytest.approx(fmean(pass_at_k(n, c, k) for n, c in counts if n >= k))
    assert one.tasks == sum(n >= k for n, _ in counts)


def test_the_interval_is_as_wide_as_the_binomial_says() -> None:
    one = estimate([(1, index % 2) for index in range(400)], 1)
    assert one is not None
    assert one.mean == 0.5
    for bound, sign in ((one.low, -1), (one.high, 1)):
        assert bound == pytest.approx(0.5 + sign * 1.96 * 0.5 / 400**0.5, abs=0.008)


def test_the_k_of_a_report() -> None:
    assert [ladder(n) for n in (0, 1, 2, 3, 4, 6)] == [[], [1], [1, 2], [1, 2, 3], [1, 2, 4], [1, 2, 4, 6]]
