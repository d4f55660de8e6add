"""An agent of a rollout as the gateway keeps it: identity, key, counters, and the calls it made.

Agents of one rollout share its interactions and timeline. An agent knows its parent, never its children.
"""

from __future__ import annotations

import secrets
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from platoon.gateway.continuation import Tails
from platoon.gateway.response import Diagnostics, FinishReason, Usage
from platoon.gateway.sampling import InferenceDefaults, SamplingOverrides, SamplingPrecedence, overrides_of
from platoon.gateway.timeline import RolloutTimeline
from platoon.harness.contract import AgentResult, CallKind, ToolAccess
from platoon.rollout.outcome import Outcome
from platoon.rollout.trajectory import Interactions, Task

BUDGET_STOPS = 8


@dataclass(frozen=True)
class OpenAgent:
    """What a new agent is opened with. A child inherits from its parent what is None here.

    `judges` False refuses judge calls and judge children of the whole tree. `policy_only`: code that the policy runs
    can read the agent's key. `call_cap`: recorded policy calls that HTTP answers before it sends budget stops.
    """

    rollout_id: str
    role: str | None = None
    goal: str | None = None
    parent: AgentSession | None = None
    task: Task | None = None
    max_steps: int | None = None
    sampling: InferenceDefaults | SamplingOverrides | None = None
    sampling_precedence: SamplingPrecedence | None = None
    seed_scope: str | None = None
    tool_access: ToolAccess | None = None
    judges: bool | None = None
    policy_only: bool = False
    call_cap: int | None = None
    agent_id: str | None = None
    trajectory_id: str | None = None
    timeline: RolloutTimeline | None = None


@dataclass(slots=True)
class CallTally:
    """Policy calls that count against a cap, of an agent and of the agents minted under it."""

    recorded: int = 0
    in_flight: int = 0


class CallSlot:
    """One policy call under way. Counted from construction until `release`, which may be called twice."""

    def __init__(self, agent: AgentSession, kind: CallKind) -> None:
        self._agent = agent if kind == "policy" else None
        if self._agent is not None:
            self._agent.policy_calls_in_flight += 1
            self._agent.call_tally.in_flight += 1

    def release(self, *_: object) -> None:
        if self._agent is not None:
            self._agent.policy_calls_in_flight -= 1
            self._agent.call_tally.in_flight -= 1
            self._agent = None


@dataclass(slots=True)
class CallRecord:
    """One recorded call. Its tokens are in the rollout's interactions (not for judge calls)."""

    call_id: str
    kind: CallKind
    message: dict[str, Any]
    finish_reason: FinishReason
    usage: Usage
    diagnostics: Diagnostics
    version: int
    start: float
    end: float


@dataclass(eq=False)
class RolloutRecord:
    """What all agents of a rollout share."""

    rollout_id: str
    interactions: Interactions = field(default_factory=Interactions)
    timeline: RolloutTimeline = field(default_factory=RolloutTimeline)
    minted: int = 0
    closed: bool = False


@dataclass(eq=False)
class AgentSession:
    """One agent. The run sets `task`, `result`, `outcome`, `execution_span` and annotations; the gateway the rest."""

    agent_id: str
    trajectory_id: str
    role: str
    goal: str | None
    parent: AgentSession | None
    path: tuple[int, ...]
    rollout: RolloutRecord
    sampling_defaults: SamplingOverrides
    sampling_precedence: SamplingPrecedence
    seed_scope: str | None
    tool_access: ToolAccess
    judges: bool
    policy_only: bool
    call_cap: int | None
    task: Task | None = None
    max_steps: int | None = None
    fork_step: int = 0
    secret: str = field(default_factory=lambda: secrets.token_urlsafe(32), repr=False)
    call_tally: CallTally = field(default_factory=CallTally)
    calls: list[CallRecord] = field(default_factory=list)
    tails: Tails = field(default_factory=Tails, repr=False)
    calls_started: int = 0
    children_opened: int = 0
    policy_calls: int = 0
    policy_calls_in_flight: int = 0
    context_overflows: int = 0
    gateway_errors: int = 0
    prefix_breaks: int = 0
    budget_stops: int = 0
    judges_refused: int = 0
    tools: Any = None
    tool_calls: list[dict[str, Any]] = field(default_factory=list)
    misc: dict[str, Any] = field(default_factory=dict)
    step_misc: dict[str, dict[str, Any]] = field(default_factory=dict)
    result: AgentResult | None = None
    outcome: Outcome | None = None
    execution_span: tuple[float, float] | None = None
    closed: bool = False

    @property
    def rollout_id(self) -> str:
        return self.rollout.rollout_id

    @property
    def interactions(self) -> Interactions:
        return self.rollout.interactions

    @property
    def timeline(self) -> RolloutTimeline:
        return self.rollout.timeline

    @property
    def depth(self) -> int:
        return len(self.path)

    @property
    def parent_agent_id(self) -> str | None:
        return None if self.parent is None else self.parent.agent_id

    @property
    def api_key(self) -> str:
        return self.secret

    @property
    def call_kinds(self) -> Sequence[CallKind]:
        return [call.kind for call in self.calls]

    def annotate(self, **misc: Any) -> None:
        self.misc.update(misc)

    def annotate_step(self, **misc: Any) -> None:
        """Annotates the last recorded call of any kind. RuntimeError before the first."""
        if not self.calls:
            raise RuntimeError("annotate_step needs a recorded model call; this agent has made none")
        self.step_misc.setdefault(self.calls[-1].call_id, {}).update(misc)


def new_agent(request: OpenAgent, rollout: RolloutRecord) -> AgentSession:
    """The session of a request, with what its parent hands down. Registers nothing."""
    parent = request.parent
    path: tuple[int, ...] = ()
    if parent is not None:
        path = (*parent.path, parent.children_opened)
        parent.children_opened += 1
    own = request.sampling is not None
    return AgentSession(
        agent_id=request.agent_id or uuid.uuid4().hex,
        trajectory_id=request.trajectory_id or str(uuid.uuid4()),
        role=request.role or ("policy" if parent is None else "subagent"),
        goal=request.goal,
        parent=parent,
        path=path,
        rollout=rollout,
        sampling_defaults=overrides_of(request.sampling) if own or parent is None else parent.sampling_defaults,
        sampling_precedence=request.sampling_precedence or (parent.sampling_precedence if parent else "request"),
        seed_scope=request.seed_scope or (parent.seed_scope if parent else None),
        tool_access=request.tool_access or (parent.tool_access if parent else "full"),
        judges=(parent.judges if parent else True) if request.judges is None else request.judges,
        policy_only=request.policy_only,
        call_cap=request.call_cap,
        task=request.task,
        max_steps=request.max_steps,
        fork_step=0 if parent is None else len(parent.calls),
    )
