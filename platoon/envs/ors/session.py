"""A rollout's session with an in-process openreward environment: opening, grading, leaving.

Grading fails closed: a failure of the infrastructure is an error, a finished episode without a finite reward is
invalid, and only an episode that ran well and was never submitted scores 0.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from platoon.envs.contract import EnvSession, EnvSetupError, ForkMode, Outcome, ToolResult, ToolSpec
from platoon.envs.gate import EnvBusy, GateClosed
from platoon.envs.ors.calls import outcome_of
from platoon.envs.ors.lease import Lease, tear_down
from platoon.envs.ors.options import OrsOptions
from platoon.envs.ors.refs import TaskRef
from platoon.envs.ors.threads import run_user_callable
from platoon.envs.teardown import in_background
from platoon.extensions.boundary import Boundary
from platoon.extensions.names import import_string
from platoon.rollout.trajectory import Task


class OrsSession:
    """One view of a lease. Calls of several agents are ordered by the lease's gate."""

    manages_concurrency = True
    sandbox: Any = None

    def __init__(self, lease: Lease, task: Task, instruction: str, rollout_id: str) -> None:
        self.task = task
        self.instruction = instruction
        self.rollout_id = rollout_id
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
        if mode not in ("shared", "copy", "fresh"):
            raise ValueError(f"fork mode {mode!r} is not one of shared, copy, fresh")
        if mode != "shared":
            raise NotImplementedError(f"fork mode {mode!r} of in-process environments is not available yet")
        if task is not None and getattr(self._lease.env, "platoon_fork", None) is not None:
            raise NotImplementedError("forks through the environment's platoon_fork are not available yet")
        goal = self.instruction if task is None or task.goal is None else task.goal
        return OrsSession(self._lease, task or self.task, goal, self.rollout_id)

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


async def open_session(cls: Any, task: Task, ref: TaskRef, options: OrsOptions, *, rollout_id: str) -> OrsSession:
    """Build, set up and prompt an environment. EnvSetupError on any failure, after closing what was opened."""
    env = await _build(cls, ref, options)
    await _set_up(env, ref, options)
    prompt = ""
    try:
        with Boundary("environment", quiet=True) as caught:
            prompt = await _prompt(env, options)
    except asyncio.CancelledError:
        in_background(tear_down(env, options.close_timeout_s))
        raise
    if caught.error is not None:
        await asyncio.shield(in_background(tear_down(env, options.close_timeout_s)))
        raise EnvSetupError("env_setup", f"task {ref.task_id}: get_prompt raised {caught.text}") from caught.error
    instruction = task.goal or prompt
    opened = replace(task, goal=instruction, misc={**task.misc, "ors": ref.record()})
    return OrsSession(Lease(env, options), opened, instruction, rollout_id)


async def _build(cls: Any, ref: TaskRef, options: OrsOptions) -> Any:
    env: Any = None
    with Boundary("environment", quiet=True) as caught:
        spec = await cls.get_task(ref.split, ref.index)
        env = cls(task_spec=spec, secrets=dict(options.secrets or {}))
    if caught.error is not None:
        raise _setup_error(f"task {ref.task_id}: {caught.text}", caught.error)
    return env


async def _set_up(env: Any, ref: TaskRef, options: OrsOptions) -> None:
    setup = asyncio.ensure_future(run_user_callable(env.setup))
    try:
        with Boundary("environment", quiet=True) as caught:
            await asyncio.shield(setup)
    except asyncio.CancelledError:
        in_background(_after_setup(setup, env, options))
        raise
    if caught.error is not None:
        await asyncio.shield(in_background(tear_down(env, options.close_timeout_s)))
        raise _setup_error(f"task {ref.task_id}: setup raised {caught.text}", caught.error)


def _setup_error(message: str, error: BaseException) -> EnvSetupError:
    wrong_task = isinstance(error, IndexError | KeyError | ValueError)
    made = EnvSetupError("env_config" if wrong_task else "env_setup", message)
    made.__cause__ = error
    return made


async def _after_setup(setup: asyncio.Future[Any], env: Any, options: OrsOptions) -> None:
    await asyncio.wait({setup})
    if not setup.cancelled():
        setup.exception()  # the rollout is gone; the setup's own failure has no reader
    await tear_down(env, options.close_timeout_s)


async def _prompt(env: Any, options: OrsOptions) -> str:
    blocks = await run_user_callable(env.get_prompt)
    if isinstance(blocks, str):
        blocks = [blocks]
    text = "\n".join(
        block
        if isinstance(block, str)
        else f"[image: {block.mimeType}]"
        if getattr(block, "type", None) == "image"
        else str(block.text)
        for block in blocks
    )
    rewrite = options.prompt_filter
    if rewrite is not None:
        text = (import_string(rewrite) if isinstance(rewrite, str) else rewrite)(text)
    return text
