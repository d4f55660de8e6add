"""The contract between platoon and an environment: tools, sessions, services.

Plain records and protocols. A session is one live environment of one rollout; a service opens sessions and
lists tasks. Failures of the environment are returned as outcomes or raised as `EnvSetupError`; none becomes a number.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, runtime_checkable

from platoon.rollout.outcome import EnvNotPrepared, EnvSetupError, Outcome
from platoon.rollout.trajectory import Task

__all__ = [
    "EnvNotPrepared",
    "EnvSession",
    "EnvSetupError",
    "EnvironmentService",
    "ForkMode",
    "Outcome",
    "PathOption",
    "SessionNeeds",
    "ToolResult",
    "ToolSpec",
]

ForkMode = Literal["shared", "copy", "fresh"]


@dataclass
class ToolSpec:
    """One tool. `input_schema` is a JSON schema; a `terminal` tool ends the episode."""

    name: str
    description: str
    input_schema: dict[str, Any]
    terminal: bool = False
    read_only: bool = False
    meta: Mapping[str, Any] | None = None


@dataclass
class ToolResult:
    """What a tool call gave. `content` holds MCP blocks.

    `metadata={"invalid": True}` on a finished result means that the environment declares the grade invalid.
    """

    content: list[dict[str, Any]]
    is_error: bool = False
    finished: bool = False
    reward: float | None = None
    metadata: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def text(cls, text: str, *, is_error: bool = False) -> ToolResult:
        return cls(content=[{"type": "text", "text": text}], is_error=is_error)

    def as_text(self) -> str:
        """The text blocks joined by newlines; any other block as `[<mime type or type>]`."""
        return "\n".join(
            str(block.get("text", ""))
            if block.get("type") == "text"
            else f"[{block.get('mimeType') or block.get('type')}]"
            for block in self.content
        )


@dataclass(frozen=True)
class SessionNeeds:
    """What a harness needs of a session's sandbox: upstream sockets, read-only mounts, memory in MB."""

    upstreams: Mapping[str, str] = field(default_factory=dict)
    mounts: tuple[Any, ...] = ()
    extra_memory_mb: int = 0


@dataclass(frozen=True)
class PathOption:
    """A service option that names a path.

    A relative path is read against the config file that wrote it, unless the sibling option `relative_to` is set.
    `written` tolerates a file that does not exist yet.
    """

    relative_to: str | None = None
    written: bool = False


@runtime_checkable
class EnvSession(Protocol):
    """One live environment. `grade` returns infrastructure failures as outcomes; `close` may be called twice.

    Optional attributes, read with getattr: `manages_concurrency` (the session orders concurrent calls itself),
    `network_isolated`, `host_loopback`, `agent_timeout_s`, `run_solution`.
    """

    task: Task
    instruction: str
    sandbox: Any

    async def tools(self) -> list[ToolSpec]: ...

    async def call_tool(self, name: str, arguments: Mapping[str, Any]) -> ToolResult: ...

    async def grade(self) -> Outcome: ...

    async def fork(self, mode: ForkMode = "shared", *, task: Task | None = None) -> EnvSession: ...

    async def close(self) -> None: ...


@runtime_checkable
class EnvironmentService(Protocol):
    """Lists tasks and opens sessions. A session that cannot be opened is an `EnvSetupError`.

    Optional methods, read with getattr: `list_splits`, `list_task_names`, `check_tasks`, `task_columns` (async),
    `rollout_overhead_s`, `agent_timeout_s`, `split_record`, `warm_task_lists` (sync).
    """

    name: str

    async def list_tasks(self, split: str) -> list[str]: ...

    async def get_task(self, task_id: str) -> Task: ...

    async def open(self, task: Task, *, rollout_id: str) -> EnvSession: ...
