"""platoon: train LLM agents with reinforcement learning.

`import platoon as pt` is cheap: names resolve on first use, and nothing heavy (torch, tinker, prefect, openreward)
is imported here.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from platoon import gym as gym
    from platoon.harness.registry import harness as harness

__version__ = "0.4.0"

_NAMES = {
    "AgentAPI": "platoon.harness.contract",
    "AgentContext": "platoon.harness.contract",
    "AgentFn": "platoon.harness.contract",
    "AgentResult": "platoon.harness.contract",
    "AgentStatus": "platoon.harness.contract",
    "Budget": "platoon.harness.contract",
    "CallKind": "platoon.harness.contract",
    "ChatReply": "platoon.harness.contract",
    "McpEndpoint": "platoon.harness.contract",
    "ModelEndpoint": "platoon.harness.contract",
    "SubagentResult": "platoon.harness.contract",
    "ToolAccess": "platoon.harness.contract",
    "EnvSession": "platoon.envs.contract",
    "ForkMode": "platoon.envs.contract",
    "program": "platoon.rollout.programs",
    "EpisodeProgram": "platoon.rollout.programs",
    "EpisodeContext": "platoon.rollout.episode_context",
    "EnvironmentService": "platoon.envs.contract",
    "SessionNeeds": "platoon.envs.contract",
    "ToolResult": "platoon.envs.contract",
    "ToolSpec": "platoon.envs.contract",
    "EnvironmentEntry": "platoon.envs.named",
    "FunctionHarness": "platoon.harness.registry",
    "PlatoonDeprecationWarning": "platoon.config.deprecations",
    "get_harness": "platoon.harness.registry",
    "Outcome": "platoon.rollout.outcome",
    "Task": "platoon.rollout.trajectory",
    "Trajectory": "platoon.rollout.trajectory",
    "TrajectoryCollection": "platoon.rollout.trajectory",
}
_MODULES = ("gym", "harness")


def __getattr__(name: str) -> Any:
    if name in _NAMES:
        return getattr(import_module(_NAMES[name]), name)
    if name in _MODULES:
        return import_module(f"platoon.{name}")
    raise AttributeError(f"module 'platoon' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *_NAMES, *_MODULES])
