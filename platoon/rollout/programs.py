"""Programs: how an episode's agent run and grade are put together. `single` runs one agent and grades."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

from platoon.config.entries import OnHarnessExit
from platoon.config.problems import ConfigError
from platoon.envs.contract import EnvSession
from platoon.harness.contract import AgentResult
from platoon.harness.inline import InlineRun, run_agent
from platoon.harness.registry import FunctionHarness
from platoon.rollout.agent import RolloutAgent
from platoon.rollout.errors import grade_session, outcome_of_run
from platoon.rollout.outcome import Outcome
from platoon.rollout.trajectory import Task


@dataclass
class EpisodeContext:
    """What a program works with. `timeout_s` bounds the root agent's run in seconds."""

    task: Task
    session: EnvSession
    harness: FunctionHarness
    context: RolloutAgent
    timeout_s: float | None
    on_exit: OnHarnessExit
    on_overflow: Any
    _run: InlineRun | None = field(default=None, init=False)
    _started: bool = field(default=False, init=False)

    async def run(self) -> AgentResult:
        """Run the root agent, once an episode. RuntimeError the second time."""
        if self._started:
            raise RuntimeError("an episode runs its root agent once; run() was called again")
        self._started = True
        root = self.context.agent
        started = time.perf_counter()
        try:
            self._run = await run_agent(self.harness, self.context, self.timeout_s)
        finally:
            root.execution_span = (started, time.perf_counter())
        root.result = self._run.result
        return self._run.result

    async def grade(self) -> Outcome:
        """The episode's outcome after the root's run. RuntimeError before it."""
        if self._run is None:
            raise RuntimeError("an episode is graded after its root agent ran; call run() first")
        return await outcome_of_run(
            self._run,
            self.context.agent,
            lambda: grade_session(self.session),
            on_exit=self.on_exit,
            on_overflow=self.on_overflow,
        )


EpisodeProgram = Callable[[EpisodeContext], Awaitable[Outcome]]


async def single(episode: EpisodeContext) -> Outcome:
    """Run the root agent, then grade."""
    await episode.run()
    return await episode.grade()


_CORE: dict[str, EpisodeProgram] = {"single": single}


def get_program(reference: str) -> EpisodeProgram:
    """The program of a reference. ConfigError for one that is not built in."""
    name = reference.removesuffix("@1")
    if name not in _CORE:
        raise ConfigError(f"program {reference!r} is not built yet; there is {', '.join(_CORE)}")
    return _CORE[name]
