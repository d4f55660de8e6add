"""What each ending of a rollout becomes: the one place where a failure turns into an outcome.

A failure never turns into a number. Only an ending that says something about the policy is graded; which ones that
are, the entry's `on_harness_exit` and `on_context_overflow` decide.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Literal

from platoon.config.entries import OnHarnessExit
from platoon.envs.contract import EnvSession
from platoon.extensions.boundary import Boundary
from platoon.gateway import AgentSession
from platoon.harness.inline import InlineRun
from platoon.rollout.outcome import EnvSetupError, Outcome

Grade = Callable[[], Awaitable[Outcome]]


async def grade_session(session: EnvSession) -> Outcome:
    """The environment's grade. A grader that raises, or gives no outcome, is an error."""
    grade: object = None
    with Boundary("grader") as caught:
        grade = await session.grade()
    if caught.error is not None:
        return unexpected(caught, "the grader raised")
    if not isinstance(grade, Outcome):
        return Outcome.infra(
            "unexpected:TypeError", reason=f"the grader returned {type(grade).__name__}, not an Outcome"
        )
    return grade


async def outcome_of_run(
    run: InlineRun,
    agent: AgentSession,
    grade: Grade,
    *,
    on_exit: OnHarnessExit,
    on_overflow: Literal["grade", "exclude"],
) -> Outcome:
    """The outcome of the root agent's ending; grades only where that is right."""
    status, text = run.result.status, run.result.error
    if run.blame is not None:
        return Outcome.infra(run.blame, reason=text)
    if status in ("completed", "limit"):
        return await grade()
    if status == "cancelled":
        return Outcome("cancelled", reason="agent_cancelled")
    if status == "timeout":
        if on_exit.timeout == "grade":
            return _with_reason(await grade(), "agent_timeout")
        return Outcome("timeout", reason="agent_timeout")
    if agent.context_overflows > 0:
        if on_overflow == "grade":
            return _with_reason(await grade(), "context_overflow")
        return Outcome.infra("context_overflow", reason=text)
    if on_exit.crash == "exclude":
        return Outcome.infra("harness_crash", reason=text)
    if on_exit.crash == "grade_if_gateway_clean" and agent.gateway_errors > 0:
        return Outcome.infra("harness_crash_gateway", reason=text)
    return _with_reason(await grade(), "harness_crash")


def _with_reason(outcome: Outcome, reason: str) -> Outcome:
    """A scored outcome under another reason, its own kept as `grade_reason`; others keep theirs."""
    if outcome.status != "scored":
        return outcome
    kept = {} if outcome.reason is None else {"grade_reason": outcome.reason}
    return replace(outcome, reason=reason, metadata={**outcome.metadata, **kept})


def unexpected(caught: Boundary, what: str) -> Outcome:
    """An error outcome for an exception that nobody was to raise."""
    return Outcome.infra(f"unexpected:{type(caught.error).__name__}", reason=f"{what} {caught.text}")


def setup_outcome(caught: Boundary) -> Outcome:
    """The outcome of a session that could not be opened."""
    if isinstance(caught.error, EnvSetupError):
        return Outcome.infra(caught.error.failure_kind, reason=str(caught.error))
    return Outcome.infra("env_setup", reason=f"opening the session raised {caught.text}")
