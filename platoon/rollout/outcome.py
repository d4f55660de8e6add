"""Outcomes and the error vocabulary of a rollout.

An outcome says whether the measurement was valid, never whether the policy did well. Only a `scored`
outcome trains; a crashed grader, a dead sandbox or a timeout keeps its own status and never becomes a
reward of 0. Plain records: every room may import this module.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

OutcomeStatus = Literal["scored", "invalid", "error", "timeout", "cancelled"]
OUTCOME_STATUSES: tuple[OutcomeStatus, ...] = get_args(OutcomeStatus)


@dataclass(frozen=True)
class Outcome:
    """How a rollout ended: a valid score, or the reason why there is none.

    `rewards` maps reward keys to values; `primary` names the key that trains. A scored outcome must
    hold its primary reward, else ValueError.
    """

    status: OutcomeStatus
    rewards: Mapping[str, float] = field(default_factory=dict)
    primary: str = "reward"
    reason: str | None = None
    failure_kind: str | None = None
    metadata: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.status not in OUTCOME_STATUSES:
            raise ValueError(f"outcome status {self.status!r} is not one of {', '.join(OUTCOME_STATUSES)}")
        if self.status == "scored" and self.primary not in self.rewards:
            raise ValueError(
                f"a scored outcome needs its primary reward {self.primary!r}; it has {sorted(self.rewards)}"
            )

    @property
    def reward(self) -> float | None:
        """The primary reward of a scored outcome; None for every other status."""
        return self.rewards[self.primary] if self.status == "scored" else None

    @property
    def trainable(self) -> bool:
        return self.status == "scored"

    @property
    def reward_key(self) -> str | None:
        """The reward key that trained; None when not scored, or when platoon itself gave the zero."""
        return self.primary if self.status == "scored" and not self.metadata.get("platoon_zero") else None

    @classmethod
    def infra(
        cls,
        failure_kind: str,
        *,
        status: OutcomeStatus = "error",
        reason: str | None = None,
        metadata: Mapping[str, Any] | None = None,
    ) -> Outcome:
        """An outcome that says nothing about the policy. ValueError for status `scored`."""
        if status == "scored":
            raise ValueError("an infrastructure failure cannot be scored")
        return cls(status=status, failure_kind=failure_kind, reason=reason, metadata=dict(metadata or {}))

    def record(self) -> dict[str, Any]:
        """The JSON form kept in a trajectory's misc under `outcome`."""
        out: dict[str, Any] = {"status": self.status, "rewards": dict(self.rewards), "reason": self.reason}
        if self.failure_kind is not None:
            out["failure_kind"] = self.failure_kind
        if "grade_reason" in self.metadata:
            out["grade_reason"] = self.metadata["grade_reason"]
        if self.status == "scored":
            out["reward_key"] = self.reward_key
        return out


class EnvSetupError(RuntimeError):
    """An environment session could not be opened. `failure_kind` is a stable word (`env_config`, `env_setup`, …)."""

    def __init__(self, failure_kind: str, message: str) -> None:
        super().__init__(message)
        self.failure_kind = failure_kind


class EnvNotPrepared(EnvSetupError):
    """Something `platoon prepare` makes is missing; the run ends with exit 78 and the command to type."""

    def __init__(self, message: str) -> None:
        super().__init__("env_config", message)
