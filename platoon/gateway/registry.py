"""The agents of a gateway: their keys, their tree, and what each may call.

An open agent is found by its key; a closed one is remembered by its key for a while, so that late calls are told apart
from unknown ones. Nothing here renders or samples.
"""

from __future__ import annotations

import uuid
from weakref import WeakValueDictionary

from platoon.gateway.agents import BUDGET_STOPS, AgentSession, OpenAgent, RolloutRecord, new_agent
from platoon.gateway.errors import (
    AgentClosedError,
    AgentLimitError,
    CallKindRefusedError,
    GatewayShutDownError,
    JudgesOffError,
    RequestError,
    UnknownAgentError,
)
from platoon.gateway.response import ChatResponse, budget_stop
from platoon.gateway.timeline import RolloutTimeline
from platoon.harness.contract import CallKind
from platoon.rollout.trajectory import Interactions

CALL_KINDS: tuple[CallKind, ...] = ("policy", "aux", "judge")
_CLOSED_KEYS = 8_192  # late calls come soon after the end, and each key costs 130 bytes


class AgentRegistry:
    """`max_minted_agents`: children that one rollout's clients may open over HTTP."""

    def __init__(self, max_minted_agents: int = 64) -> None:
        if isinstance(max_minted_agents, bool) or max_minted_agents < 0:
            raise ValueError(f"max_minted_agents is {max_minted_agents!r}; expected an integer of at least 0")
        self.max_minted_agents = max_minted_agents
        # Rollouts live as long as one of their agents is referenced, so a closed one stays readable by its owner.
        self._rollouts: WeakValueDictionary[str, RolloutRecord] = WeakValueDictionary()
        self._agents: dict[str, list[AgentSession]] = {}
        self._by_secret: dict[str, AgentSession] = {}
        self._closed_secrets: dict[str, None] = {}
        self.is_shut_down = False

    def open_agent(self, request: OpenAgent) -> AgentSession:
        """A new agent with its own key. GatewayShutDownError; ValueError for a parent of another rollout."""
        if self.is_shut_down:
            raise GatewayShutDownError("the gateway is shut down and opens no agents")
        parent = request.parent
        if parent is not None:
            self._check_parent(parent, request)
        rollout = self._rollouts.get(request.rollout_id)
        if rollout is None or rollout.closed:
            rollout = RolloutRecord(request.rollout_id, timeline=request.timeline or RolloutTimeline())
            self._rollouts[request.rollout_id] = rollout
        agent = new_agent(request, rollout)
        self._agents.setdefault(request.rollout_id, []).append(agent)
        self._by_secret[agent.secret] = agent
        return agent

    def _check_parent(self, parent: AgentSession, request: OpenAgent) -> None:
        if parent not in self._agents.get(parent.rollout_id, []):
            raise UnknownAgentError(f"parent agent {parent.agent_id} is not open in this gateway")
        if parent.rollout_id != request.rollout_id:
            raise ValueError(
                f"parent agent {parent.agent_id} belongs to rollout {parent.rollout_id}, not {request.rollout_id}"
            )
        if request.role == "judge" and not parent.judges:
            parent.judges_refused += 1
            raise JudgesOffError("judges are off in this rollout; a judge agent cannot be opened")

    def mint_subagent(self, parent: AgentSession, role: str, goal: str | None = None) -> AgentSession:
        """A child that shares the parent's cap, tally and `policy_only`. AgentLimitError past the rollout's limit."""
        self.check_open(parent)
        if parent.rollout.minted >= self.max_minted_agents:
            raise AgentLimitError(f"this rollout has minted its {self.max_minted_agents} agents; reuse one of them")
        child = self.open_agent(
            OpenAgent(
                parent.rollout_id,
                role=role,
                goal=goal,
                parent=parent,
                policy_only=parent.policy_only,
                call_cap=parent.call_cap,
            )
        )
        child.call_tally = parent.call_tally
        parent.rollout.minted += 1
        return child

    def agent_of(self, secret: str | None) -> AgentSession:
        """The open agent with this key. AgentClosedError for a key that was valid, UnknownAgentError for others."""
        agent = self._by_secret.get(secret or "")
        if agent is not None:
            return agent
        if secret in self._closed_secrets:
            raise AgentClosedError("this agent is closed and makes no more calls")
        raise UnknownAgentError("missing or unknown API key")

    def agents(self, rollout_id: str) -> list[AgentSession]:
        """All agents of an unclosed rollout, closed ones included, in opening order."""
        return list(self._agents.get(rollout_id, []))

    def close_agent(self, agent: AgentSession) -> None:
        """Revokes the key. A call that is sampling records nothing. Closing twice is harmless."""
        if agent.closed:
            return
        agent.closed = True
        self._by_secret.pop(agent.secret, None)
        self._closed_secrets[agent.secret] = None
        if len(self._closed_secrets) > _CLOSED_KEYS:
            del self._closed_secrets[next(iter(self._closed_secrets))]

    def close_rollout(self, rollout_id: str) -> list[AgentSession]:
        """Closes every agent of the rollout and forgets it; returns all of them in opening order, parents first."""
        agents = self._agents.pop(rollout_id, [])
        for agent in agents:
            self.close_agent(agent)
        if agents:
            agents[0].rollout.closed = True
        return agents

    def interactions(self, rollout_id: str) -> Interactions:
        """A rollout's recorded tokens, readable while one of its agents is referenced; empty for an unknown one."""
        rollout = self._rollouts.get(rollout_id)
        return Interactions() if rollout is None else rollout.interactions

    def shut_down(self) -> None:
        """Closes every agent and refuses new ones for good."""
        self.is_shut_down = True
        for rollout_id in list(self._agents):
            for agent in self._agents[rollout_id]:
                self.close_agent(agent)

    def check_kind(self, agent: AgentSession, kind: str) -> None:
        """RequestError for an unknown kind, CallKindRefusedError for one that this agent may not make."""
        if kind not in CALL_KINDS:
            raise RequestError(f"call kind {kind!r} is none of {', '.join(CALL_KINDS)}")
        if agent.policy_only and (kind == "judge" or (kind == "aux" and agent.call_cap is not None)):
            raise CallKindRefusedError(f"this agent may not make {kind} calls")

    def check_judges(self, agent: AgentSession, kind: CallKind) -> None:
        if kind == "judge" and not agent.judges:
            agent.judges_refused += 1
            raise JudgesOffError("judges are off in this rollout")

    def budget_stop(self, agent: AgentSession, kind: CallKind) -> ChatResponse | None:
        """The answer to a capped policy call past its cap, else None. AgentLimitError after eight of them."""
        cap = agent.call_cap
        if kind != "policy" or cap is None or agent.call_tally.recorded + agent.call_tally.in_flight < cap:
            return None
        if agent.budget_stops >= BUDGET_STOPS:
            raise AgentLimitError(
                f"the step budget of {cap} calls is used up and {BUDGET_STOPS} calls past it were answered"
            )
        agent.budget_stops += 1
        agent.misc["budget"] = {"enforce": "gateway", "max_steps": cap, "stops": agent.budget_stops}
        return budget_stop(f"platoon-budget-{uuid.uuid4()}", cap)

    def check_open(self, agent: AgentSession) -> None:
        if self.is_shut_down:
            raise GatewayShutDownError("the gateway is shut down")
        if agent.closed:
            raise AgentClosedError(f"agent {agent.agent_id} is closed and makes no more calls")
