"""One live openreward environment in this process: its gate, its accounting, its calls and its end.

Shared by a session and its shared forks; the last to leave closes it. Calls never raise: a failed call is an error
result, and whether it was the policy's fault or the infrastructure's is kept for the grade.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, TypeVar

from platoon.envs.contract import ToolResult
from platoon.envs.gate import CallClass, EnvBusy, GateClosed, ToolGate
from platoon.envs.ors.calls import CallFailure, failure, numeric, refusal, success
from platoon.envs.ors.options import OrsOptions
from platoon.envs.ors.sdk import call_session_tool
from platoon.envs.ors.threads import run_user_callable
from platoon.envs.ors.tools import ToolTable, list_tools
from platoon.envs.teardown import in_background
from platoon.extensions.boundary import Boundary

T = TypeVar("T")
log = logging.getLogger(__name__)


class Lease:
    """`env` is a set-up environment. `turn` counts executed calls; `terminal` is the first finished result.

    With `parent`, `env` is another view of the parent's state: calls are ordered and counted together, the accounting
    is its own, and ending it leaves the environment to the parent.
    """

    def __init__(self, env: Any, options: OrsOptions, parent: Lease | None = None) -> None:
        self.env = env
        self.options = options
        self.parent = parent
        self.gate: ToolGate = ToolGate(options.queue_timeout_s) if parent is None else parent.gate
        self.turn = 0
        self.finished = False
        self.cap_hit = False
        self.closed = False
        self.last_reward: float | None = None
        self.terminal: ToolResult | None = None
        self.terminal_tool: str | None = None
        self.errors: list[CallFailure] = []
        self.learned_terminal: set[str] = set()
        self._tools: ToolTable | None = None
        self._holders = 0
        self._inflight: dict[CallClass, int] = (
            {"serial": 0, "concurrent": 0, "exclusive": 0} if parent is None else parent._inflight
        )
        self._moved: asyncio.Event = asyncio.Event() if parent is None else parent._moved
        self._teardown: asyncio.Task[None] | None = None

    @property
    def infra_errors(self) -> list[CallFailure]:
        return [error for error in self.errors if error.infra]

    async def tools(self) -> ToolTable:
        """The tool table, listed once under an exclusive grant."""
        if self._tools is None:
            self._tools = await self.run("exclusive", lambda: list_tools(self.env, self.options))
        return self._tools

    async def run(self, kind: CallClass, op: Callable[[], Awaitable[T]], *, view: str = "") -> T:
        """Run environment code through the gate, counted while it runs. EnvBusy and GateClosed go up."""

        async def counted() -> T:
            self._inflight[kind] += 1
            try:
                return await op()
            finally:
                self._inflight[kind] -= 1
                self._moved.set()

        return await self.gate.run(kind, counted, view=view)

    async def call(self, name: str, arguments: Mapping[str, Any], view: str) -> ToolResult:
        """Run one tool call in its turn. `view` is the fairness key when no agent is named."""
        refused = self._refused(name)
        if refused is not None:
            return refused
        try:
            table = await self.tools()
            kind = table.call_class(name)
            terminal = table.is_terminal(name) or name in self.learned_terminal
            return await self.run(kind, lambda: self._execute(name, dict(arguments), terminal), view=view)
        except EnvBusy as busy:
            result = ToolResult.text(f"{busy}. Try again.", is_error=True)
            result.metadata = {"error_reason": "env_busy", "waited_s": busy.waited_s}
            return result
        except GateClosed:
            return _refusal("closed", "the environment is closed")

    def _refused(self, name: str) -> ToolResult | None:
        if self.closed:
            return _refusal("closed", "the environment is closed")
        if self.finished:
            return self._over("environment_already_finished", f"{name!r} was not run: the episode has finished")
        cap = self.options.max_tool_calls
        if cap and self.turn >= cap:
            self.finished = self.cap_hit = True
            return self._over("max_tool_calls_exceeded", f"{name!r} was not run: the limit is {cap} tool calls")
        return None

    def _over(self, reason: str, text: str) -> ToolResult:
        result = _refusal(reason, text)
        result.finished = True
        result.reward = self.last_reward
        return result

    async def _execute(self, name: str, arguments: dict[str, Any], terminal: bool) -> ToolResult:
        refused = self._refused(name)  # the call waited behind may have ended the episode
        if refused is not None:
            return refused
        self.turn += 1
        answer: Any = None
        with Boundary("environment", quiet=True) as caught:
            answer = await call_session_tool(self.env, name, arguments)
        if caught.error is not None:
            return self._failed(failure(name, caught.error, terminal=terminal))
        if not answer.root.ok:
            return self._failed(refusal(name, answer.root, terminal=terminal))
        return self._succeeded(name, success(answer.root.output))

    def _failed(self, error: CallFailure) -> ToolResult:
        self.errors.append(error)
        return error.result()

    def _succeeded(self, name: str, result: ToolResult) -> ToolResult:
        reward = numeric(result.reward)
        if reward is not None:
            self.last_reward = reward
        if result.finished:
            self.finished = True
            if self._tools is not None and not self._tools.declares_terminal:
                self.learned_terminal.add(name)
            if self.terminal is None:
                self.terminal, self.terminal_tool = result, name
        return result

    async def settled(self) -> bool:
        """Wait for calls that may still end the episode. False when one still runs after the queue timeout."""
        deadline = None
        if self.options.queue_timeout_s is not None:
            deadline = asyncio.get_running_loop().time() + self.options.queue_timeout_s
        while self._may_still_end():
            self._moved.clear()
            try:
                async with asyncio.timeout_at(deadline):
                    await self._moved.wait()
            except TimeoutError:
                return not self._may_still_end()
        return True

    def _may_still_end(self) -> bool:
        if self.terminal is not None:
            return False
        if self._tools is not None and self._tools.declares_terminal:
            return self._inflight["exclusive"] > 0
        return sum(self._inflight.values()) > 0

    def hold(self) -> None:
        """Keep the environment open until the matching `release`."""
        self._holders += 1

    def adopt(self, other: Lease) -> None:
        """Take over what another lease has counted so far: an episode that goes on in a copy."""
        self.turn, self.finished, self.cap_hit = other.turn, other.finished, other.cap_hit
        self.last_reward, self.terminal, self.terminal_tool = other.last_reward, other.terminal, other.terminal_tool
        self.errors, self.learned_terminal = list(other.errors), set(other.learned_terminal)

    async def release(self) -> None:
        """Leave the environment. The last holder closes it; the teardown goes on when the caller is cancelled."""
        self._holders -= 1
        if self._holders > 0:
            return
        self.closed = True
        if self.parent is not None:
            await self.parent.release()
            return
        if self._teardown is None:
            self._teardown = in_background(self._close())
        await asyncio.shield(self._teardown)

    async def _close(self) -> None:
        try:
            async with asyncio.timeout(self.options.close_timeout_s):
                await self._quiet()
        except TimeoutError:
            log.warning("environment %s is closed while a call still runs; its teardown waits", type(self.env).__name__)
        self.gate.close()
        await self._quiet()
        await tear_down(self.env, self.options.close_timeout_s)

    async def _quiet(self) -> None:
        """Returns when no environment code runs any more: tearing down under a live call would break both."""
        while sum(self._inflight.values()):
            self._moved.clear()
            await self._moved.wait()


async def tear_down(env: Any, timeout_s: float) -> None:
    """Run the environment's teardown. A failing or slow one is logged, never raised: the grade already stands."""
    with Boundary("environment"):
        async with asyncio.timeout(timeout_s):
            await run_user_callable(env.teardown)


def _refusal(reason: str, text: str) -> ToolResult:
    result = ToolResult.text(text, is_error=True)
    result.metadata = {"error_reason": reason}
    return result
