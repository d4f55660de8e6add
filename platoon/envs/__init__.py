"""Environments: the contract, the services that open them, and the task lists they give."""

from __future__ import annotations

from platoon.envs.contract import (
    EnvironmentService,
    EnvNotPrepared,
    EnvSession,
    EnvSetupError,
    Outcome,
    PathOption,
    SessionNeeds,
    ToolResult,
    ToolSpec,
)

__all__ = [
    "EnvNotPrepared",
    "EnvSession",
    "EnvSetupError",
    "EnvironmentService",
    "Outcome",
    "PathOption",
    "SessionNeeds",
    "ToolResult",
    "ToolSpec",
]
