"""What one call to an openreward environment gave: a result, or a failure and whom it blames.

A failure is the policy's (a refused or raising call) or the infrastructure's. Any failure of a tool that may end
the episode is the infrastructure's: the environment may have graded, and that must not turn into a zero.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from platoon.envs.contract import ToolResult
from platoon.rollout.outcome import Outcome

_INFRA_CLASSES = {"SessionTerminatedError", "TransportError", "MaxRetriesError", "HeartbeatTimeoutError"}
# Python's message for a signal handler outside the main thread. A grader that arms an alarm fails with it here,
# however well the policy did, so it never counts as the policy's own mistake.
_SIGNAL_THREAD = "signal only works in main thread"


@dataclass(frozen=True)
class CallFailure:
    """A tool call that raised or was refused. `infra` failures make the episode's grade an error."""

    tool: str
    reason: str
    message: str
    infra: bool

    def result(self) -> ToolResult:
        result = ToolResult.text(f"Error executing tool {self.tool}: {self.message}", is_error=True)
        result.metadata = {"error_reason": self.reason}
        return result

    def record(self) -> dict[str, Any]:
        return {"tool": self.tool, "reason": self.reason, "message": self.message}


def failure(tool: str, error: BaseException, *, terminal: bool) -> CallFailure:
    """Classify what an environment raised in process."""
    sdk = any(cls.__name__ in _INFRA_CLASSES and cls.__module__.startswith("openreward") for cls in type(error).__mro__)
    platform = isinstance(error, ValueError) and str(error).startswith(_SIGNAL_THREAD)
    message = str(error) or type(error).__name__
    return CallFailure(tool, "env_infra" if sdk or platform else "tool_raised", message, sdk or platform or terminal)


def refusal(tool: str, error: Any, *, terminal: bool) -> CallFailure:
    """The SDK's `RunToolError`: an unknown tool, arguments that do not fit, an episode that is over."""
    reason = getattr(error, "reason", None) or "invalid_call"
    # Arguments that do not fit never reached the tool, so nothing can have been graded.
    return CallFailure(tool, reason, error.error, terminal and reason not in _NEVER_RAN)


_NEVER_RAN = {"not_found", "input_validation", "name_collision"}


def success(output: Any) -> ToolResult:
    """The SDK's `ToolOutput` as a `ToolResult`; an error declared in its metadata becomes `is_error`."""
    metadata = dict(output.metadata or {})
    content = [_block(block) for block in output.blocks]
    declared = metadata.get("openhands.dev/tool-error")
    if isinstance(declared, Mapping) and declared.get("message"):
        content = [{"type": "text", "text": str(declared["message"])}]
    is_error = declared is True or isinstance(declared, Mapping)
    return ToolResult(content, is_error, bool(output.finished), output.reward, metadata)


def _block(block: Any) -> dict[str, Any]:
    if getattr(block, "type", None) == "image":
        return {"type": "image", "data": block.data, "mimeType": block.mimeType}
    return {"type": "text", "text": block.text}


def numeric(value: Any) -> float | None:
    """`value` as a float when it is a finite number (a bool is none)."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return None
    return float(value)


def outcome_of(reward: Any, metadata: Mapping[str, Any], extra: Mapping[str, Any]) -> Outcome:
    """The grade that an environment gave: a score, or invalid when it says so or gives no finite reward."""
    notes = {**extra, "env_metadata": dict(metadata)}
    if metadata.get("invalid") is True:
        reason = metadata.get("reason")
        return Outcome.infra(
            "env_invalid", status="invalid", reason=reason if isinstance(reason, str) else None, metadata=notes
        )
    value = numeric(reward)
    if value is None:
        return Outcome.infra(
            "no_reward",
            status="invalid",
            reason=f"the episode finished with reward {reward!r}, which is not a finite number",
            metadata=notes,
        )
    return Outcome("scored", {"reward": value}, metadata=notes)
