from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from platoon.envs.gate import CallClass, EnvBusy, GateClosed, ToolGate, on_behalf_of

KINDS: tuple[CallClass, ...] = ("serial", "concurrent", "exclusive")


@dataclass(eq=False)
class Call:
    number: int
    key: str
    kind: CallClass
    task: asyncio.Task[None] | None = None
    started: bool = False
    ended: bool = False
    cancelled: bool = False
    finish: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def running(self) -> bool:
        return self.started and not self.ended

    @property
    def waiting(self) -> bool:
        return not self.started and not self.cancelled


class World:
    """A gate and everything that arrived at it; checks the rules after every event."""

    def __init__(self) -> None:
        self.gate = ToolGate(None)
        self.calls: list[Call] = []
        self.order: list[Call] = []

    def arrive(self, key: str, kind: CallClass) -> Call:
        call = Call(len(self.calls), key, kind)

        async def op() -> None:
            call.started = True
            self.order.append(call)
            await call.finish.wait()
            call.ended = True

        async def caller() -> None:
            with on_behalf_of(key):
                await self.gate.run(kind, op)

        self.calls.append(call)
        call.task = asyncio.create_task(caller())
        return call

    async def settle(self) -> None:
        for _ in range(8):
            await asyncio.sleep(0)

    def check(self) -> None:
        running = [call for call in self.calls if call.running]
        waiting = [call for call in self.calls if call.waiting]
        kinds = [call.kind for call in running]
        assert kinds.count("serial") <= 1
        assert "exclusive" not in kinds or len(kinds) == 1
        assert self.gate.running == len(running)
        assert self.gate.waiting == len(waiting)
        barrier = min((call.number for call in waiting if call.kind == "exclusive"), default=None)
        heads = {call.key: call for call in reversed(waiting)}
        for call in heads.values():  # nothing that may run is kept waiting
            if barrier is not None and call.number > barrier:
                continue
            if call.kind == "exclusive":
                assert running or any(other.number < call.number for other in waiting)
            elif call.kind == "serial":
                assert "serial" in kinds or "exclusive" in kinds
            else:
                assert "exclusive" in kinds

    def check_order(self) -> None:
        for key in {call.key for call in self.calls}:
            mine = [call.number for call in self.order if call.key == key]
            assert mine == sorted(mine), "an agent's calls run in the order they came"
        for place, call in enumerate(self.order):
            if call.kind == "exclusive":
                before = {other.number for other in self.order[:place]}
                assert all(other.number in before or other.cancelled for other in self.calls[: call.number])


actions = st.lists(
    st.one_of(
        st.tuples(st.just("arrive"), st.sampled_from("abc"), st.sampled_from(KINDS)),
        st.tuples(st.just("finish"), st.integers(0, 9), st.none()),
        st.tuples(st.just("cancel"), st.integers(0, 9), st.none()),
    ),
    max_size=25,
)


@settings(max_examples=120, deadline=None)
@given(actions)
def test_rules_hold_after_every_event(steps: list[tuple[str, str | int, CallClass | None]]) -> None:
    async def play() -> None:
        world = World()
        for action, value, kind in steps:
            if action == "arrive":
                assert kind is not None
                world.arrive(str(value), kind)
            elif action == "finish":
                running = [call for call in world.calls if call.running]
                if running:
                    running[int(value) % len(running)].finish.set()
            else:
                open_calls = [call for call in world.calls if not call.ended and not call.cancelled]
                if open_calls:
                    call = open_calls[int(value) % len(open_calls)]
                    call.cancelled = not call.started
                    assert call.task is not None
                    call.task.cancel()
            await world.settle()
            world.check()
        while any(call.running for call in world.calls):
            for call in world.calls:
                if call.running:
                    call.finish.set()
            await world.settle()
        assert all(call.ended or call.cancelled for call in world.calls), "every call that was not withdrawn ran"
        world.check_order()
        await asyncio.gather(*(call.task for call in world.calls if call.task), return_exceptions=True)

    asyncio.run(play())


async def test_agents_take_turns_however_many_calls_one_has() -> None:
    world = World()
    for key in ("a", "a", "a", "a", "b"):
        world.arrive(key, "serial")
    await world.settle()
    for _ in range(5):
        next(call for call in world.calls if call.running).finish.set()
        await world.settle()
    assert [call.key for call in world.order] == ["a", "a", "b", "a", "a"]


async def test_a_cancelled_caller_leaves_its_operation_running() -> None:
    world = World()
    first, second = world.arrive("a", "serial"), world.arrive("b", "serial")
    await world.settle()
    assert first.task is not None
    first.task.cancel()
    await world.settle()
    assert first.task.cancelled()
    assert first.running
    assert not second.started
    first.finish.set()
    await world.settle()
    assert first.ended
    assert second.running
    second.finish.set()
    await asyncio.gather(second.task or asyncio.sleep(0))


async def test_a_call_that_waits_too_long_never_runs() -> None:
    gate = ToolGate(0.01)
    ran: list[str] = []
    finish = asyncio.Event()
    running = asyncio.create_task(gate.run("exclusive", finish.wait))
    await asyncio.sleep(0)
    waiting = asyncio.create_task(_run(gate, "exclusive", ran, "late"))
    later = asyncio.create_task(_run(gate, "concurrent", ran, "later"))
    with pytest.raises(EnvBusy) as busy:
        await waiting
    with pytest.raises(EnvBusy):
        await later
    finish.set()
    await running
    assert busy.value.timeout_s == 0.01
    assert busy.value.waited_s >= 0.009
    assert ran == []
    await _run(gate, "serial", ran, "after")
    assert ran == ["after"]


async def _run(gate: ToolGate, kind: CallClass, ran: list[str], name: str) -> None:
    async def op() -> None:
        ran.append(name)

    with on_behalf_of(name):
        await gate.run(kind, op)


async def test_an_exclusive_waiter_that_leaves_frees_those_it_held_back() -> None:
    world = World()
    running = world.arrive("a", "serial")
    barrier = world.arrive("b", "exclusive")
    held = world.arrive("c", "concurrent")
    await world.settle()
    assert not held.started
    barrier.cancelled = True
    assert barrier.task is not None
    barrier.task.cancel()
    await world.settle()
    assert held.running
    running.finish.set()
    held.finish.set()
    await world.settle()


async def test_close_refuses_waiters_and_newcomers_and_lets_the_running_end() -> None:
    gate = ToolGate()
    finish = asyncio.Event()
    running = asyncio.create_task(gate.run("serial", finish.wait))
    waiting = asyncio.create_task(gate.run("serial", finish.wait))
    await asyncio.sleep(0)
    gate.close()
    with pytest.raises(GateClosed):
        await waiting
    with pytest.raises(GateClosed):
        await gate.run("concurrent", finish.wait)
    finish.set()
    assert await running


async def test_a_call_from_inside_a_grant_is_refused_instead_of_waiting_for_itself() -> None:
    gate = ToolGate()

    async def inner() -> None: ...

    async def outer() -> None:
        await gate.run("concurrent", inner)

    with pytest.raises(RuntimeError, match="own environment"):
        await gate.run("serial", outer)
    await gate.run("serial", inner)


@pytest.mark.parametrize("limit", [0, -1.0, True])
def test_the_queue_timeout_is_a_positive_number_or_none(limit: float) -> None:
    with pytest.raises(ValueError, match="queue_timeout_s"):
        ToolGate(limit)
