"""What `platoon rollout` shows of the rollout it played: a summary for scripts, a tree of agents for readers."""

from __future__ import annotations

from typing import Any

from platoon.eval.records import usage_of
from platoon.gateway.dump import to_dict
from platoon.rollout.episode import Episode


def summary(episode: Episode, task: str) -> dict[str, Any]:
    """`{id, task, agents, total_steps, max_depth, reward, outcome, error}` of a rollout. An agent's `calls` and tokens
    are of all its model calls; `finish` says why it ended."""
    collection = episode.collection
    dumped = to_dict(collection)["trajectories"] if collection is not None else {}
    depths = collection.depths() if collection is not None else {}
    agents = [_agent(key, trajectory, depths[key]) for key, trajectory in dumped.items()]
    return {
        "id": collection.id if collection is not None else None,
        "task": task,
        "agents": agents,
        "total_steps": sum(agent["steps"] for agent in agents),
        "max_depth": max(depths.values(), default=0),
        "reward": episode.outcome.reward,
        "outcome": episode.outcome.status,
        "error": episode.error,
    }


def _agent(key: str, trajectory: dict[str, Any], depth: int) -> dict[str, Any]:
    misc = trajectory["misc"]
    parent = (trajectory["parent_info"] or {}).get("id")
    own = misc.get("outcome")
    used = usage_of({key: trajectory}).values()
    return {
        "id": key,
        "parent": parent,
        "depth": depth,
        "role": misc.get("role") or ("root" if parent is None else "child"),
        "goal": (trajectory["task"] or {}).get("goal"),
        "steps": len(trajectory["steps"]),
        "calls": sum(one["calls"] for one in used),
        "prompt_tokens": sum(one["prompt_tokens"] for one in used),
        "completion_tokens": sum(one["completion_tokens"] for one in used),
        "reward": trajectory["reward"] if own is None or own.get("status") == "scored" else None,
        "outcome": own.get("status") if own is not None else None,
        "finish": (own or {}).get("reason") or (misc.get("agent_result") or {}).get("status"),
        "error": trajectory["error_message"],
    }


def tree(shown: dict[str, Any]) -> str:
    """The summary as an indented tree of agents."""
    lines = [f"{shown['task']}: {shown['outcome']}, {_reward(shown)}, {_count(shown['total_steps'], 'step')}"]
    for agent in shown["agents"]:
        at = "  " * (agent["depth"] + 1)
        goal = " ".join((agent["goal"] or "").split())
        tokens = f"{agent['prompt_tokens']} tokens in, {agent['completion_tokens']} out"
        parts = [_count(agent["calls"], "call"), tokens, _reward(agent), *filter(None, [agent["finish"]])]
        lines.append(f"{at}{agent['role']}: {', '.join(parts)}")
        if goal:
            lines.append(f"{at}  {goal[:100]}")
    if shown["error"]:
        lines.append(f"  error: {shown['error']}")
    return "\n".join(lines)


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" + "s" * (number != 1)


def _reward(shown: dict[str, Any]) -> str:
    return f"reward {shown['reward']:g}" if shown["reward"] is not None else "no reward"
