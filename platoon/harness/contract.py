"""The agent contract: what a harness function gets and returns.

Plain records and protocols, importable without the trainer; every room may import this module.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Protocol, runtime_checkable

if TYPE_CHECKING:
    from platoon.envs.contract import EnvSession, ToolResult, ToolSpec
    from platoon.rollout.trajectory import Task

AgentStatus = Literal["completed", "limit", "timeout", "error", "cancelled"]
CallKind = Literal["policy", "aux", "judge"]
ToolAccess = Literal["full", "no_terminal", "read_only"]
LIMIT_MESSAGE = "WARNING: Exhausted budget before the agent finished."


@dataclass(frozen=True)
class AgentResult:
    """How one agent's run ended. `limit` means that its step budget ran out; it is graded like `completed`."""

    status: AgentStatus = "completed"
    final_message: str | None = None
    error: str | None = None


@dataclass(frozen=True)
class ChatReply:
    """One model reply. `message` is an OpenAI assistant message, to be appended to the conversation as it is.

    `unparsed_tool_calls` counts tool calls that the model wrote malformed: their text stays in the message's content,
    and they are not among `tool_calls`.
    """

    call_id: str
    message: dict[str, Any]
    finish_reason: Literal["stop", "length", "tool_calls"]
    unparsed_tool_calls: int = 0

    @property
    def text(self) -> str:
        return self.message.get("content") or ""

    @property
    def reasoning(self) -> str | None:
        return self.message.get("reasoning_content")

    @property
    def tool_calls(self) -> list[dict[str, Any]]:
        return self.message.get("tool_calls") or []


@dataclass(frozen=True)
class ModelEndpoint:
    """Where a client of the OpenAI API reaches this agent's model. `base_url` ends in `/v1` and holds its secret."""

    base_url: str
    api_key: str
    model: str

    def headers(self, kind: CallKind = "policy") -> dict[str, str]:
        return {"X-Platoon-Call-Kind": kind}


@dataclass(frozen=True)
class McpEndpoint:
    url: str
    headers: Mapping[str, str]


@dataclass(frozen=True)
class SubagentResult:
    """What a spawn returns. A rejected launch has an empty `agent_id`."""

    agent_id: str
    trajectory_id: str
    goal: str
    result: AgentResult
    outcome: Any = None
    message: str = ""

    @property
    def launched(self) -> bool:
        return bool(self.agent_id)

    @property
    def ok(self) -> bool:
        return self.launched and self.result.status == "completed"


@runtime_checkable
class Budget(Protocol):
    """One step is one recorded policy call."""

    def remaining(self) -> float:
        """Steps left; infinity when unbounded."""
        ...

    def used(self) -> int: ...


@runtime_checkable
class AgentAPI(Protocol):
    async def spawn(self, goal: str, **options: Any) -> SubagentResult: ...

    def keep_children(self) -> None: ...


class AgentContext(Protocol):
    """Everything one agent sees. Attributes are set by the run; `task` may be replaced by the harness."""

    agent_id: str
    trajectory_id: str
    parent_agent_id: str | None
    depth: int
    role: str
    task: Task
    session: EnvSession
    instruction: str
    max_steps: int | None
    access: ToolAccess
    options: Mapping[str, Any]
    endpoint: ModelEndpoint
    mcp: McpEndpoint | None
    budget: Budget
    agents: AgentAPI

    async def chat(
        self,
        messages: list[dict[str, Any]],
        *,
        tools: list[dict[str, Any]] | None = None,
        kind: CallKind = "policy",
        **sampling: Any,
    ) -> ChatReply: ...

    async def list_tools(self) -> list[ToolSpec]: ...

    async def call_tool(self, name: str, arguments: Mapping[str, Any]) -> ToolResult: ...

    def annotate(self, **misc: Any) -> None: ...

    def annotate_step(self, **misc: Any) -> None: ...


AgentFn = Callable[[AgentContext], Awaitable[AgentResult]]


def out_of_steps(ctx: AgentContext, taken: int) -> bool:
    """True when the budget is used up or `taken` steps reached `ctx.max_steps`."""
    limit = math.inf if not ctx.max_steps else ctx.max_steps
    return ctx.budget.remaining() <= 0 or taken >= limit


def terminal_tool(tools: list[ToolSpec]) -> ToolSpec | None:
    """The first tool that ends the episode, if any."""
    return next((tool for tool in tools if tool.terminal), None)


def terminal_arguments(tool: ToolSpec, message: str) -> dict[str, Any]:
    """The message under the terminal tool's first parameter; {} when it takes none."""
    first = next(iter(tool.input_schema.get("properties", {})), None)
    return {} if first is None else {first: message}
