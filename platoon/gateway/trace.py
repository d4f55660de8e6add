"""Agents to trajectories: what a rollout's recorded calls look like to credit, evaluation and viewers.

One trajectory per agent, root first; one step per call that is not a judge's. Judge agents below the root and all
their descendants get no trajectory; their calls are listed on the nearest ancestor that has one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from platoon.gateway.agents import AgentSession, CallRecord
from platoon.harness.contract import LIMIT_MESSAGE
from platoon.rollout.outcome import Outcome
from platoon.rollout.trajectory import ParentInfo, Task, Trajectory, TrajectoryCollection, TrajectoryStep

_MARKERS = {
    "invalid": "trajectory_invalid",
    "error": "trajectory_invalid",
    "timeout": "trajectory_timed_out",
    "cancelled": "trajectory_cancelled",
}


def build_trajectory_collection(
    agents: Sequence[AgentSession],
    *,
    rollout_id: str,
    task: Task | None,
    outcome: Outcome,
    model_name: str | None = None,
) -> TrajectoryCollection:
    """The collection of one rollout. `outcome` is the episode's; agents with an own outcome keep theirs.

    ValueError unless there is exactly one root and every parent is among the agents.
    """
    roots = [agent for agent in agents if agent.parent is None]
    if len(roots) != 1:
        raise ValueError(f"rollout {rollout_id} has {len(roots)} root agents; exactly one is needed")
    known = {agent.agent_id for agent in agents}
    for agent in agents:
        if agent.parent is not None and agent.parent.agent_id not in known:
            raise ValueError(f"agent {agent.agent_id} of rollout {rollout_id} has a parent that is not in it")
    root = roots[0]
    ordered = [root, *(agent for agent in agents if agent is not root)]
    kept = [agent for agent in ordered if _keeper(agent) is agent]
    collection = TrajectoryCollection(id=rollout_id)
    for agent in kept:
        collection.trajectories[agent.trajectory_id] = _trajectory(agent, root, task, outcome, model_name)
    for trajectory_id, calls in _judge_calls(ordered).items():
        collection.trajectories[trajectory_id].misc["judge_calls"] = calls
    return collection


def attach_judge_audit(collection: TrajectoryCollection, agents: Sequence[AgentSession]) -> None:
    """Lists the judge calls again, after finalizers have made theirs."""
    found = _judge_calls(agents)
    for trajectory_id, trajectory in collection.trajectories.items():
        if trajectory_id in found:
            trajectory.misc["judge_calls"] = found[trajectory_id]
        else:
            trajectory.misc.pop("judge_calls", None)


def _keeper(agent: AgentSession) -> AgentSession:
    """The agent itself, or the nearest ancestor above the topmost judge on its path to the root."""
    keeper = agent
    current: AgentSession | None = agent
    while current is not None:
        if current.parent is not None and current.role == "judge":
            keeper = current.parent
        current = current.parent
    return keeper


def _judge_calls(agents: Sequence[AgentSession]) -> dict[str, list[dict[str, Any]]]:
    found: dict[str, list[dict[str, Any]]] = {}
    for agent in agents:
        keeper = _keeper(agent)
        calls = [call for call in agent.calls if keeper is not agent or call.kind == "judge"]
        if calls:
            found.setdefault(keeper.trajectory_id, []).extend(_audit(agent, call) for call in calls)
    return found


def _audit(agent: AgentSession, call: CallRecord) -> dict[str, Any]:
    return {
        "call_id": call.call_id,
        "agent_id": agent.agent_id,
        "role": agent.role,
        "message": call.message,
        "finish_reason": call.finish_reason,
        "usage": call.usage.record(),
    }


def _trajectory(
    agent: AgentSession, root: AgentSession, task: Task | None, episode: Outcome, model_name: str | None
) -> Trajectory:
    own = episode if agent is root and agent.outcome is None else agent.outcome
    outcome = episode if own is None else own
    trajectory = Trajectory(
        id=agent.trajectory_id,
        task=_task(agent, root, task),
        parent_info=None if agent.parent is None else ParentInfo(agent.parent.trajectory_id, agent.fork_step),
        steps=[_step(agent, call, model_name) for call in agent.calls if call.kind != "judge"],
        misc=_misc(agent, own),
    )
    _apply_outcome(trajectory, outcome)
    _apply_result(trajectory, agent, shares=own is None)
    if agent is root and not agent.judges:
        trajectory.misc["judges"] = {"enabled": False}
    return trajectory


def _task(agent: AgentSession, root: AgentSession, task: Task | None) -> Task | None:
    if agent.task is not None:
        return agent.task
    if agent is root or task is None:
        return task
    return task.fork(agent.goal or "", agent.max_steps)


def _apply_outcome(trajectory: Trajectory, outcome: Outcome) -> None:
    if outcome.reward is not None:
        trajectory.reward = outcome.reward
        if trajectory.steps:
            trajectory.steps[-1].misc.setdefault("reward_misc", {})["reward/success"] = outcome.reward
        return
    trajectory.misc[_MARKERS[outcome.status]] = True
    trajectory.error_message = f"{outcome.status}: {outcome.reason or outcome.failure_kind or 'no reason given'}"


def _apply_result(trajectory: Trajectory, agent: AgentSession, *, shares: bool) -> None:
    result = agent.result
    if result is None:
        return
    trajectory.misc["agent_result"] = {"status": result.status, "error": result.error}
    trajectory.finish_message = result.final_message
    if shares and result.status in ("timeout", "cancelled"):
        trajectory.misc[_MARKERS[result.status]] = True
    error = result.error or (LIMIT_MESSAGE if result.status == "limit" else None)
    trajectory.error_message = trajectory.error_message or error


def _misc(agent: AgentSession, own: Outcome | None) -> dict[str, Any]:
    misc: dict[str, Any] = dict(agent.misc)
    misc["agent"] = {"agent_id": agent.agent_id, "role": agent.role}
    if own is not None:
        misc["outcome"] = own.record()
    misc["model_generations"] = {
        call.call_id: {**call.diagnostics.record(), "finish_reason": call.finish_reason} for call in agent.calls
    }
    misc["model_call_spans"] = {call.call_id: [call.start, call.end] for call in agent.calls}
    if agent.execution_span is not None:
        misc["execution_span"] = list(agent.execution_span)
    if agent.tool_calls:
        misc["tool_calls"] = list(agent.tool_calls)
    counts = {
        "context_overflows": agent.context_overflows,
        "gateway_errors": agent.gateway_errors,
        "prefix_breaks": agent.prefix_breaks,
    }
    misc.update({name: count for name, count in counts.items() if count})
    if agent.judges_refused:
        misc.setdefault("judges_refused", {"count": agent.judges_refused})
    return misc


def _step(agent: AgentSession, call: CallRecord, model_name: str | None) -> TrajectoryStep:
    action: dict[str, Any] = {"completion_id": call.call_id, "usage": call.usage.record()}
    if model_name is not None:
        action["model"] = model_name
    if call.kind != "policy":
        action["kind"] = call.kind
    misc: dict[str, Any] = {"action_misc": action, "message": call.message}
    for key, value in agent.step_misc.get(call.call_id, {}).items():
        if key == "action_misc":
            continue
        if key == "reward_misc":
            misc[key] = {**misc.get(key, {}), **value}
        else:
            misc[key] = value
    return TrajectoryStep(misc)
