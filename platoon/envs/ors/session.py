"""A rollout's session with an in-process openreward environment: tools, grading, forks, leaving.

Grading fails closed: a failure of the infrastructure is an error, a finished episode without a finite reward is
invalid, and only an episode that ran well and was never submitted scores 0.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from platoon.envs.contract import EnvSession, ForkMode, Outcome, ToolResult, ToolSpec
from platoon.envs.gate import EnvBusy, GateClosed
from platoon.envs.ors.calls import outcome_of
from platoon.envs.ors.forks import copy_of, view_of
from platoon.envs.ors.lease import Lease
from platoon.envs.ors.opening import open_environment
from platoon.envs.ors.options import OrsOptions
from platoon.envs.ors.refs import TaskRef
from platoon.envs.ors.threads import run_user_callable
from platoon.extensions.boundary import Boundary
from platoon.rollout.trajectory import Task


class OrsSession:
    """One view of a lease. Calls of several agents are ordered by the lease's gate."""

    manages_concurrency = True
    sandbox: Any = None

    def __init__(self, lease: Lease, task: Task, instruction: str, rollout_id: str, origin: Origin) -> None:
        self.task = task
        self.instruction = instruction
        self.rollout_id = rollout_id
        self.origin = origin
        self.closed = False
        self._lease = lease
        lease.hold()

    async def tools(self) -> list[ToolSpec]:
        table = await self._lease.tools()
        learned = self._lease.learned_terminal
        return [replace(spec, terminal=True) if spec.name in learned else spec for spec in table.specs]

    async def call_tool(self, name: str, arguments: Mapping[str, Any]) -> ToolResult:
        if self.closed:
            return ToolResult.text("the environment session is closed", is_error=True)
        if not isinstance(arguments, Mapping) or any(not isinstance(key, str) for key in arguments):
            return ToolResult.text(f"the arguments of {name!r} must be a JSON object, not {arguments!r}", is_error=True)
        return await self._lease.call(name, arguments, view=str(id(self)))

    async def grade(self) -> Outcome:
        """The episode's outcome; infrastructure failures are returned, not raised."""
        lease = self._lease
        if self.closed or lease.closed:
            return Outcome.infra("session_closed", reason="the session was closed before it was graded")
        hook = getattr(lease.env, "platoon_grade", None)
        if hook is None:
            if not await lease.settled():
                return Outcome.infra("env_busy", reason="a call that may end the episode was still running")
            return _grade(lease, None)
        if lease.terminal is not None:
            return _grade(lease, None)
        try:
            return await lease.run("exclusive", lambda: _grade_by_hook(lease, hook))
        except EnvBusy as busy:
            return Outcome.infra("env_busy", reason=str(busy))
        except GateClosed:
            return Outcome.infra("session_closed", reason="the session was closed before it was graded")

    async def fork(self, mode: ForkMode = "shared", *, task: Task | None = None) -> EnvSession:
        """A child's session: on the same state, on a copy of it, or on a new environment of the same task.

        RuntimeError when the session is closed, EnvBusy when no copy can be taken in time, NotImplementedError when
        the class cannot be copied, EnvSetupError for a new environment that does not open.
        """
        if mode not in ("shared", "copy", "fresh"):
            raise ValueError(f"fork mode {mode!r} is not one of shared, copy, fresh")
        if self.closed or self._lease.closed:
            raise RuntimeError("the environment session is closed and cannot be forked")
        if mode == "fresh":
            return await self.origin.open(task or replace(self.task, goal=None), self.rollout_id)
        if mode == "copy":
            lease = await copy_of(self._lease)
        else:
            lease = await view_of(self._lease, task)
        child = self.task if task is None else replace(task, misc={**task.misc, "ors": self.origin.ref.record()})
        return OrsSession(lease, child, child.goal or self.instruction, self.rollout_id, self.origin)

    async def close(self) -> None:
        """Leave the environment; a second call does nothing more than wait for the first's teardown."""
        if not self.closed:
            self.closed = True
            await self._lease.release()


async def _grade_by_hook(lease: Lease, hook: Any) -> Outcome:
    if lease.terminal is not None or lease.cap_hit:
        return _grade(lease, None)
    value: Any = None
    with Boundary("grader") as caught:
        value = await run_user_callable(hook)
    if caught.error is not None:
        return Outcome.infra(f"unexpected:{type(caught.error).__name__}", reason=f"platoon_grade raised {caught.text}")
    return value if isinstance(value, Outcome) else _grade(lease, value)


def _grade(lease: Lease, value: Any) -> Outcome:
    notes: dict[str, Any] = {"tool_calls": lease.turn, "terminal_tool": lease.terminal_tool}
    if lease.terminal is not None:
        return outcome_of(lease.terminal.reward, lease.terminal.metadata, notes)
    if lease.cap_hit:
        reward = lease.last_reward if lease.last_reward is not None else 0.0
        return Outcome("scored", {"reward": reward}, reason="max_tool_calls", metadata=notes)
    if value is not None:
        return _from_hook(value, {**notes, "graded_by": "platoon_grade"})
    if lease.infra_errors:
        last = lease.infra_errors[-1]
        return Outcome.infra("env_error", reason=f"{last.tool}: {last.message}", metadata=notes)
    notes["errors"] = [error.record() for error in lease.errors[-5:]]
    return Outcome("scored", {"reward": 0.0}, reason="no_submit", metadata=notes)


def _from_hook(value: Any, notes: Mapping[str, Any]) -> Outcome:
    if isinstance(value, int | float):
        return outcome_of(value, {}, notes)
    if isinstance(value, Mapping):
        get = value.get
    else:

        def get(key: str, default: Any = None) -> Any:
            return getattr(value, key, default)

    metadata = dict(get("metadata") or {})
    if get("invalid") is True:
        metadata["invalid"] = True
    return outcome_of(get("reward"), metadata, notes)


@dataclass(frozen=True)
class Origin:
    """What a session was opened from: the environment class, the task's place in it, the service's options."""

    cls: Any
    ref: TaskRef
    options: OrsOptions

    async def open(self, task: Task, rollout_id: str) -> OrsSession:
        """A session with a new environment. EnvSetupError on any failure, after closing what was opened."""
        env, prompt = await open_environment(self.cls, self.ref, self.options)
        instruction = task.goal or prompt
        opened = replace(task, goal=instruction, misc={**task.misc, "ors": self.ref.record()})
        return OrsSession(Lease(env, self.options), opened, instruction, rollout_id, self)
