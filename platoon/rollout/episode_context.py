"""What a program works with: one session, one root agent, one grade, and finalizers on the built trajectories."""

from __future__ import annotations

import inspect
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from platoon.config.rollout import EntryRollout
from platoon.envs.contract import EnvSession
from platoon.gateway import AgentSession
from platoon.harness.contract import AgentResult
from platoon.harness.inline import InlineRun, run_agent
from platoon.harness.registry import FunctionHarness, get_harness
from platoon.rollout.agent import RolloutAgent
from platoon.rollout.errors import grade_session, outcome_of_run
from platoon.rollout.outcome import Outcome
from platoon.rollout.trajectory import Task, TrajectoryCollection

if TYPE_CHECKING:  # a route names a program, and a program is given its route
    from platoon.rollout.route import Route

Finalizer = Callable[[TrajectoryCollection], Awaitable[None] | None]
Snapshot = Callable[[], TrajectoryCollection]


@dataclass
class EpisodeContext:
    """`timeout_s` bounds the root agent's run in seconds; `root` is its record."""

    task: Task
    session: EnvSession
    config: EntryRollout
    route: Route
    context: RolloutAgent
    timeout_s: float | None
    snapshot: Snapshot
    finalizers: list[Finalizer] = field(default_factory=list)
    _run: InlineRun | None = field(default=None, init=False)
    _started: bool = field(default=False, init=False)

    @property
    def root(self) -> AgentSession:
        return self.context.agent

    async def run(
        self,
        harness: str | FunctionHarness | None = None,
        *,
        goal: str | None = None,
        options: Mapping[str, Any] | None = None,
    ) -> AgentResult:
        """Run the root agent, once an episode; the route's harness, goal and options unless others are given.

        RuntimeError the second time, ConfigError for a harness that there is not.
        """
        if self._started:
            raise RuntimeError("an episode runs its root agent once; run() was called again")
        self._started = True
        made = get_harness(harness) if isinstance(harness, str) else harness or self.route.harness
        if goal is not None:
            self.context.instruction = goal
        if options is not None:
            self.context.options = MappingProxyType(dict(options))
        started = time.perf_counter()
        try:
            self._run = await run_agent(made, self.context, self.timeout_s)
        finally:
            self.root.execution_span = (started, time.perf_counter())
        self.root.result = self._run.result
        return self._run.result

    async def grade(self) -> Outcome:
        """The episode's outcome after the root's run. RuntimeError before it."""
        if self._run is None:
            raise RuntimeError("an episode is graded after its root agent ran; call run() first")
        return await outcome_of_run(
            self._run,
            self.root,
            lambda: grade_session(self.session),
            on_exit=self.route.on_harness_exit,
            on_overflow=self.route.on_context_overflow,
        )

    def add_finalizer(self, fn: Finalizer) -> None:
        """Call `fn` on the built collection, in the order added, each once. It may change rewards and notes."""
        if fn not in self.finalizers:
            self.finalizers.append(fn)


async def finalize(collection: TrajectoryCollection, finalizers: list[Finalizer]) -> None:
    """Run the finalizers; what they raise goes up."""
    for fn in finalizers:
        result = fn(collection)
        if inspect.isawaitable(result):
            await result
