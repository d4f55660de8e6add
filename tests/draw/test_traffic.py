"""Gauges, blocked shares and counters against slow sums."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from platoon.draw.gauges import BlockedShares, Gauge
from platoon.draw.records import WAIT_REASONS, Draw, Drawn, Fated, WaitReason
from platoon.draw.traffic import ReasonKeys, Traffic, configured_rollouts


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(-3, 3)), max_size=30), st.integers(0, 5))
@settings(max_examples=60)
def test_a_gauge_weighs_by_time(changes: list[tuple[int, int]], rest: int) -> None:
    gauge = Gauge(0.0)
    seconds: list[int] = []  # the value during each second
    values, value, now = [0], 0, 0
    for wait, change in changes:
        seconds += [value] * wait
        now += wait
        value += change
        values.append(value)
        gauge.add(change, float(now))
    seconds += [value] * rest
    mean, highest, length = gauge.window(float(now + rest))
    assert length == len(seconds)
    assert mean == pytest.approx(sum(seconds) / len(seconds) if seconds else value)
    assert highest == max(values)
    assert gauge.window(float(now + rest + 2))[:2] == (float(value), value)


@given(st.lists(st.tuples(st.integers(0, 5), st.sampled_from([None, *WAIT_REASONS])), max_size=30), st.integers(1, 5))
@settings(max_examples=60)
def test_blocked_shares_add_up(changes: list[tuple[int, WaitReason | None]], rest: int) -> None:
    shares = BlockedShares(0.0)
    seconds: list[WaitReason | None] = []
    reason: WaitReason | None = None
    for wait, following in changes:
        seconds += [reason] * wait
        reason = following
        if reason is None:
            shares.go(float(len(seconds)))
        else:
            shares.wait(reason, float(len(seconds)))
    seconds += [reason] * rest
    found = shares.window(float(len(seconds)))
    assert found == {name: pytest.approx(seconds.count(name) / len(seconds)) for name in WAIT_REASONS}
    going_on = shares.window(float(len(seconds) + 1))
    assert going_on == {name: float(name == reason) for name in WAIT_REASONS}, "a wait in progress goes on"


def drawn(seq: int, sampler: str, reason: str = "order") -> Drawn:
    return Drawn(Draw(1, seq, seq, f"t{seq}", seq, None, "a", 1, sampler, reason))


def test_draws_are_counted_by_reason_and_entry() -> None:
    traffic = Traffic(0.0, 4)
    assert traffic.sampled({}) == {"sampler/draws": 0.0}
    for record in (drawn(0, "uniform@hard"), drawn(1, "uniform@hard", "reissue"), drawn(2, "auto")):
        traffic.note(record)
    traffic.note(Fated((1, 0), "skipped", "a"))
    traffic.note(Fated((1, 1), "lost", "a"))
    traffic.decided(drawn(0, "uniform@hard").draw, 0.002)
    traffic.decided(drawn(2, "auto").draw, 0.004)
    assert traffic.sampled({}) == {
        "sampler/draws": 3.0,
        "sampler/draws/order": 2.0,
        "sampler/draws/reissue": 1.0,
        "sampler/environment/hard/draws": 2.0,
        "sampler/environment/hard/draws/order": 1.0,
        "sampler/environment/hard/draws/reissue": 1.0,
        "sampler/environment/hard/decision_ms": 2.0,
        "sampler/environment/hard/decision_ms_max": 2.0,
        "sampler/decision_ms": pytest.approx(3.0),
        "sampler/decision_ms_max": 4.0,
    }
    assert (traffic.skipped(), traffic.skipped()) == ({"a": 1}, {})
    assert traffic.sampled({}) == {"sampler/draws": 0.0, "sampler/draws/order": 0.0, "sampler/draws/reissue": 0.0}


def test_reasons_become_keys() -> None:
    keys = ReasonKeys()
    said = ["fallback", "reissue", *(f"r{i}" for i in range(16)), "order", "r3", "Bad", "9x", "a" * 33]
    assert [keys.key(reason) for reason in said] == [*said[:18], "other", "r3", "other", "other", "other"]


def test_configured_rollouts() -> None:
    assert configured_rollouts(10, {3, 4}, rolling=True) == 10
    assert configured_rollouts(10, {4}, rolling=False) == 8
    assert configured_rollouts(10, {3, 4}, rolling=False) == 10
