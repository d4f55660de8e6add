"""The breaker: probes at most once a second, open for 15 s, closed again by a probe alone."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tasks.breaker import OPEN_SECONDS, PROBE_SECONDS, Breaker


class Api:
    def __init__(self) -> None:
        self.now = 100.0
        self.up = True
        self.probes: list[float] = []

    async def probe(self) -> bool:
        self.probes.append(self.now)
        return self.up

    def clock(self) -> float:
        return self.now


async def test_probes_at_most_once_a_second_while_closed() -> None:
    api = Api()
    breaker = Breaker(api.probe, api.clock)
    for _ in range(30):
        assert await breaker.allow()
        api.now += 0.1
    assert len(api.probes) == 3


async def test_a_failed_probe_opens_it_for_fifteen_seconds() -> None:
    api = Api()
    breaker = Breaker(api.probe, api.clock)
    api.up = False
    assert not await breaker.allow()
    api.up = True
    api.now += OPEN_SECONDS - 0.1
    assert not await breaker.allow()
    assert len(api.probes) == 1
    assert breaker.is_open
    api.now += 0.2
    assert await breaker.allow()
    assert not breaker.is_open


async def test_one_that_fails_again_within_a_minute_is_left_alone_twice_as_long() -> None:
    api = Api()
    breaker = Breaker(api.probe, api.clock)
    waits = []
    for up_seconds in (0.0, 59.0, 59.0, 59.0, 59.0, 61.0):
        assert await breaker.allow(at_once=True)
        api.now += up_seconds
        breaker.trip()
        waits.append(breaker.due)
    assert waits == [15.0, 30.0, 60.0, 120.0, 120.0, 15.0]


async def test_it_closes_once_what_was_lost_is_set_right() -> None:
    api = Api()
    answers = [False, True]

    async def recover() -> bool:
        return answers.pop(0)

    breaker = Breaker(api.probe, api.clock, recover=recover)
    assert await breaker.allow(), "there is nothing to recover before a failure"
    breaker.trip()
    assert not await breaker.allow(at_once=True)
    assert breaker.is_open
    assert await breaker.allow(at_once=True)


@given(st.lists(st.tuples(st.floats(0, 20), st.booleans(), st.booleans()), max_size=40))
async def test_never_allows_within_fifteen_seconds_of_a_failure(events: list[tuple[float, bool, bool]]) -> None:
    api = Api()
    breaker = Breaker(api.probe, api.clock)
    failed_at = float("-inf")
    for wait, up, trips in events:
        api.now += wait
        api.up = up
        before = len(api.probes)
        allowed = await breaker.allow()
        if allowed:
            assert api.now - failed_at >= OPEN_SECONDS
            assert api.probes
            assert api.now - api.probes[-1] < PROBE_SECONDS
        elif len(api.probes) > before:
            failed_at = api.now
        if trips:
            breaker.trip()
            failed_at = api.now
