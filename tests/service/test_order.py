"""A model's requests leave the gate in the order of their numbers, whatever the order of arrival."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from platoon.service.order import SequenceGate


@given(st.integers(1, 12).flatmap(lambda n: st.permutations(range(1, n + 1))))
@settings(max_examples=60)
def test_any_arrival_leaves_in_order_and_at_once(arrival: list[int]) -> None:
    gate: SequenceGate[int] = SequenceGate()
    left: list[int] = []
    for count, number in enumerate(arrival, start=1):
        left += gate.arrive(number, number)
        seen = set(arrival[:count])
        assert left == [n for n in range(1, len(arrival) + 1) if set(range(1, n + 1)) <= seen]


def test_a_number_passes_once() -> None:
    gate: SequenceGate[str] = SequenceGate()
    assert gate.arrive(1, "a") == ["a"]
    assert gate.arrive(3, "c") == []
    for number in (0, 1, 3):
        with pytest.raises(ValueError, match="the next one is 2"):
            gate.arrive(number, "again")


def test_a_withdrawn_item_stays_away_and_its_number_open() -> None:
    gate: SequenceGate[str] = SequenceGate()
    gate.arrive(2, "late")
    assert gate.withdraw(2) == "late"
    assert gate.withdraw(2) is None
    assert gate.arrive(1, "a") == ["a"]
    assert gate.arrive(2, "b") == ["b"]
