"""`platoon-noop`: makes no model call and leaves the environment as it is. For measuring environments alone."""

from __future__ import annotations

from platoon.harness.contract import AgentContext, AgentResult
from platoon.harness.registry import harness


@harness("platoon-noop")
async def noop(ctx: AgentContext) -> AgentResult:
    """Do nothing; the environment grades its starting state."""
    return AgentResult("completed")
