"""The context that a harness function gets: its model, its tools, its budget, its notes."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType, TracebackType
from typing import Any

from platoon.envs.contract import EnvSession, ToolResult, ToolSpec
from platoon.gateway import AgentSession, ChatRequest, ModelGateway
from platoon.gateway.errors import error_kind
from platoon.harness.contract import (
    AgentAPI,
    Budget,
    CallKind,
    ChatReply,
    McpEndpoint,
    ModelEndpoint,
    SubagentResult,
    ToolAccess,
)
from platoon.harness.inline import Fault
from platoon.rollout.tools import ToolPlane, ToolsUnavailable
from platoon.rollout.trajectory import Task


@dataclass(frozen=True)
class StepBudget:
    """Counts the agent's own recorded policy calls. `max_steps` None or 0 means no limit."""

    agent: AgentSession
    max_steps: int | None

    def remaining(self) -> float:
        return math.inf if not self.max_steps else max(0, self.max_steps - self.agent.policy_calls)

    def used(self) -> int:
        return self.agent.policy_calls


class NoSubagents:
    """Stands where subagents will be started."""

    async def spawn(self, goal: str, **options: Any) -> SubagentResult:
        raise NotImplementedError("ctx.agents.spawn: subagents are not built yet; play the task with one agent")

    def keep_children(self) -> None:
        """There are no children to keep."""


class _SamplingFaults:
    """Notes the model calls that failed in the service, whatever its client raised; lets every exception go on."""

    def __init__(self, faults: list[Fault]) -> None:
        self._faults = faults

    def __enter__(self) -> None:
        return None

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not isinstance(error, Exception):
            return
        blame = error_kind(error)
        if blame == "timeout":
            self._faults.append(Fault("sample_timeout", error))
        elif blame == "server":
            self._faults.append(Fault("sample_error", error))


@dataclass
class RolloutAgent:
    """One agent's context. `faults` lists what failed under the agent through no fault of its own."""

    gateway: ModelGateway
    agent: AgentSession
    plane: ToolPlane
    session: EnvSession
    task: Task
    instruction: str
    options: Mapping[str, Any]
    endpoint: ModelEndpoint
    mcp: McpEndpoint | None = None
    faults: list[Fault] = field(default_factory=list)
    agent_id: str = field(init=False)
    trajectory_id: str = field(init=False)
    parent_agent_id: str | None = field(init=False)
    depth: int = field(init=False)
    role: str = field(init=False)
    access: ToolAccess = field(init=False)
    max_steps: int | None = field(init=False)
    budget: Budget = field(init=False)
    agents: AgentAPI = field(default_factory=NoSubagents)

    def __post_init__(self) -> None:
        agent = self.agent
        self.agent_id, self.trajectory_id, self.parent_agent_id = (
            agent.agent_id,
            agent.trajectory_id,
            agent.parent_agent_id,
        )
        self.depth, self.role, self.access, self.max_steps = agent.depth, agent.role, agent.tool_access, agent.max_steps
        self.options = MappingProxyType(dict(self.options))
        self.budget = StepBudget(agent, agent.max_steps)

    async def chat(
        self,
        messages: list[dict[str, Any]],
        *,
        tools: list[dict[str, Any]] | None = None,
        kind: CallKind = "policy",
        **sampling: Any,
    ) -> ChatReply:
        """One model call. ValueError for bad parameters, ContextWindowExceededError, TimeoutError."""
        with _SamplingFaults(self.faults):
            response = await self.gateway.chat(self.agent, ChatRequest(messages, tools, sampling), kind)
        unparsed = 0 if response.diagnostics is None else response.diagnostics.unparsed_tool_calls
        return ChatReply(response.call_id, response.message, response.finish_reason, unparsed)

    async def list_tools(self) -> list[ToolSpec]:
        try:
            return await self.plane.list(self.access)
        except ToolsUnavailable as error:
            self.faults.append(Fault("env_error", error))
            raise

    async def call_tool(self, name: str, arguments: Mapping[str, Any]) -> ToolResult:
        """The tool's result; a failing, hidden or unknown tool gives an error result."""
        try:
            return await self.plane.call(self.agent, name, arguments)
        except ToolsUnavailable as error:
            self.faults.append(Fault("env_error", error))
            raise

    def annotate(self, **misc: Any) -> None:
        """Notes on the trajectory; the same key replaces."""
        self.agent.annotate(**misc)

    def annotate_step(self, **misc: Any) -> None:
        """Notes on the last recorded call of any kind. RuntimeError before the first."""
        self.agent.annotate_step(**misc)
