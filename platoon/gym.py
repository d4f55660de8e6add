"""Step environments for platoon: `loop` plays one as a harness, `as_environment` serves one with a tool `act`."""

from __future__ import annotations

from platoon.envs.gym import StepEnv, StepEnvError, as_environment
from platoon.harness.gym import loop

__all__ = ["StepEnv", "StepEnvError", "as_environment", "loop"]
