"""Runs one agent's harness function under its time limit and says how it ended.

Tells the agent's own time limit from a model service that did not answer: the first is the agent's ending, the second
says nothing about it. Never raises what the harness raised; cancellation goes through.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass
from typing import Literal, Protocol, get_args

from platoon.envs.gym import StepEnvError
from platoon.extensions.boundary import Boundary
from platoon.gateway.errors import ContextWindowExceededError
from platoon.harness.contract import AgentContext, AgentResult, AgentStatus
from platoon.harness.registry import FunctionHarness

log = logging.getLogger(__name__)
UNWIND_S = 10.0
Blame = Literal["sample_timeout", "sample_error", "env_error"]


@dataclass(frozen=True)
class Fault:
    """Something that failed under the agent through no fault of its own."""

    blame: Blame
    error: BaseException


class ObservedContext(AgentContext, Protocol):
    """A context that remembers the faults it handed to the harness."""

    faults: list[Fault]


@dataclass(frozen=True)
class InlineRun:
    """`blame` names a fault of model service or environment that the harness did not survive.

    `error` is what escaped from the harness.
    """

    result: AgentResult
    blame: Blame | None = None
    error: BaseException | None = None


async def run_agent(harness: FunctionHarness, ctx: ObservedContext, timeout_s: float | None) -> InlineRun:
    """Run the harness for at most `timeout_s` seconds (None: without limit).

    It runs as a task of its own: a harness that swallows its cancellation changes neither its time limit nor the
    rollout's cancellation, and what its task groups do to their task stays there.
    """
    value: object = None

    async def run(caught: Boundary) -> None:
        nonlocal value
        with caught:
            value = await harness.fn(ctx)

    caught = Boundary("harness", quiet=True)
    task = asyncio.create_task(run(caught), name=f"harness {harness.ref}")
    try:
        done, _ = await asyncio.wait({task}, timeout=timeout_s)
    except asyncio.CancelledError:
        await _stop(harness, task)
        raise
    if not done:
        await _stop(harness, task)
        return InlineRun(AgentResult("timeout", error=f"the harness ran longer than {timeout_s:g} s"))
    if task.cancelled():
        return InlineRun(AgentResult("cancelled", error="the harness cancelled itself"))
    if caught.error is None:
        return _returned(harness, value)
    blame = _blame(caught.error, ctx.faults)
    caught.report(expected=ContextWindowExceededError if blame is None else Exception)
    timed_out = blame is None and isinstance(caught.error, TimeoutError)
    return InlineRun(AgentResult("timeout" if timed_out else "error", error=caught.text), blame, caught.error)


async def _stop(harness: FunctionHarness, task: asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.wait({task}, timeout=UNWIND_S)
    if not task.done():
        log.warning("harness %s did not end within %g s of its cancellation and is left behind", harness.ref, UNWIND_S)


def _returned(harness: FunctionHarness, value: object) -> InlineRun:
    if isinstance(value, AgentResult) and value.status in get_args(AgentStatus):
        return InlineRun(value)
    what = f"status {value.status!r}" if isinstance(value, AgentResult) else type(value).__name__
    text = (
        f"harness {harness.ref} returned {what}, not an AgentResult with a status of {', '.join(get_args(AgentStatus))}"
    )
    return InlineRun(AgentResult("error", error=text))


def _blame(error: BaseException, faults: list[Fault]) -> Blame | None:
    """Whose fault the escaped error is: the fault that it is, wraps, or was raised because of."""
    by_id = {id(fault.error): fault.blame for fault in faults}
    seen: set[int] = set()
    pending: list[BaseException | None] = [error]
    while pending:
        at = pending.pop()
        if at is None or id(at) in seen:
            continue
        if id(at) in by_id:
            return by_id[id(at)]
        if isinstance(at, StepEnvError):
            return "env_error"
        seen.add(id(at))
        pending += [at.__cause__, at.__context__]
        if isinstance(at, BaseExceptionGroup):
            pending += at.exceptions
    return None
