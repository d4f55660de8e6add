"""The tools of a session as agents see them: listing by access, calls in order, one record a call.

A tool that raises gives an error result; no exception of an environment's tool reaches a harness.
"""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager, nullcontext
from typing import Any

from platoon.envs.contract import EnvSession, ToolResult, ToolSpec
from platoon.envs.gate import on_behalf_of
from platoon.extensions.boundary import Boundary
from platoon.gateway import AgentSession
from platoon.harness.contract import ToolAccess

_KEPT_TEXT = 2000


class ToolsUnavailable(RuntimeError):
    """The environment could not list its tools."""


class ToolPlane:
    """One session's tools, listed once. A session that does not order calls itself gets them one at a time."""

    def __init__(self, session: EnvSession) -> None:
        self._session = session
        self._specs: list[ToolSpec] | None = None
        self._listing = asyncio.Lock()
        self._calls = None if getattr(session, "manages_concurrency", False) else asyncio.Lock()

    async def list(self, access: ToolAccess) -> list[ToolSpec]:
        """The tools that an agent with this access may call. ToolsUnavailable when the environment gives none."""
        async with self._listing:
            if self._specs is None:
                with Boundary("environment") as caught:
                    self._specs = list(await self._session.tools())
                if caught.error is not None:
                    raise ToolsUnavailable(f"the environment's tools cannot be listed: {caught.text}") from caught.error
        return [spec for spec in self._specs or [] if _visible(spec, access)]

    async def call(self, agent: AgentSession, name: str, arguments: Mapping[str, Any]) -> ToolResult:
        """Run one call on the agent's behalf and record it. A tool the agent cannot see gives an error result."""
        if all(spec.name != name for spec in await self.list(agent.tool_access)):
            return ToolResult.text(f"there is no tool named {name!r}", is_error=True)
        started = time.time()
        result = ToolResult.text(f"the call of {name} was cancelled", is_error=True)
        try:
            result = await self._run(agent, name, arguments)
        finally:
            _record(agent, name, arguments, result, started)
        return result

    async def _run(self, agent: AgentSession, name: str, arguments: Mapping[str, Any]) -> ToolResult:
        turn: AbstractAsyncContextManager[Any] = nullcontext() if self._calls is None else self._calls
        result: object = None
        async with turn:
            with Boundary("environment") as caught, on_behalf_of(agent.agent_id):
                result = await self._session.call_tool(name, arguments)
        if caught.error is not None:
            return ToolResult.text(f"Error executing tool {name}: {caught.text}", is_error=True)
        if not isinstance(result, ToolResult):
            return ToolResult.text(f"tool {name} returned {type(result).__name__}, not a ToolResult", is_error=True)
        return result


def _visible(spec: ToolSpec, access: ToolAccess) -> bool:
    if access == "no_terminal":
        return not spec.terminal
    return access == "full" or spec.read_only


def _record(agent: AgentSession, name: str, arguments: Mapping[str, Any], result: ToolResult, started: float) -> None:
    if agent.closed:
        return
    agent.tool_calls.append(
        {
            "event_id": f"tool-{uuid.uuid4().hex}",
            "name": name,
            "arguments": dict(arguments),
            "text": result.as_text()[:_KEPT_TEXT],
            "is_error": result.is_error,
            "finished": result.finished,
            "reward": result.reward,
            "after_call_id": agent.calls[-1].call_id if agent.calls else None,
            "started_at": started,
            "ended_at": time.time(),
        }
    )
