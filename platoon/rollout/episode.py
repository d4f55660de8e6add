"""One rollout: open the session, play, grade, collect, close.

Whatever environment, harness or grader raise becomes an outcome. Cancellation goes through after everything opened was
closed. Nothing here chooses tasks or computes credit.
"""

from __future__ import annotations

import asyncio
import re
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Literal

from platoon.config.rollout import EntryRollout
from platoon.envs.contract import EnvSession
from platoon.envs.teardown import in_background
from platoon.extensions.boundary import Boundary
from platoon.gateway import AgentSession, ModelGateway, OpenAgent
from platoon.gateway.timeline import RolloutTimeline
from platoon.gateway.trace import build_trajectory_collection
from platoon.harness.contract import ModelEndpoint
from platoon.rollout.agent import RolloutAgent
from platoon.rollout.episode_context import EpisodeContext, finalize
from platoon.rollout.errors import setup_outcome, unexpected
from platoon.rollout.outcome import EnvNotPrepared, EnvSetupError, Outcome
from platoon.rollout.programs import get_program
from platoon.rollout.route import Route
from platoon.rollout.tools import ToolPlane
from platoon.rollout.trajectory import Interactions, Task, TrajectoryCollection

if TYPE_CHECKING:  # a run without a server need not load one
    from platoon.gateway.server import GatewayServer

Disposition = Literal["completed", "no_trajectories", "error", "straggler_killed", "worker_launch_failed"]


@dataclass(frozen=True)
class EpisodeRequest:
    """`rollout_id`: see `new_rollout_id`. `seed_scope` makes the run's sampling seeds this rollout's own.

    `on_first_call` is called once, when the rollout first asks its model.
    """

    task_id: str
    route: Route
    config: EntryRollout
    rollout_id: str
    seed_scope: str | None = None
    on_first_call: Callable[[], None] | None = None


@dataclass(frozen=True)
class Episode:
    """A finished rollout. `collection` is None when it never started. Times in seconds.

    `call_spans` are (start, end) of each recorded model call on the `perf_counter` clock; `call_seconds` its
    (gap before it, render, sample, parse).
    """

    collection: TrajectoryCollection | None
    interactions: Interactions
    outcome: Outcome
    disposition: Disposition
    seconds: float
    error: str | None = None
    first_call_seconds: float | None = None
    call_spans: tuple[tuple[float, float], ...] = field(default=())
    call_seconds: tuple[tuple[float, float, float, float], ...] = field(default=())

    @classmethod
    def failed(cls, disposition: Disposition, outcome: Outcome, seconds: float = 0.0) -> Episode:
        """A rollout that left nothing to train on."""
        return cls(None, Interactions(), outcome, disposition, seconds, outcome.reason)


def new_rollout_id(task_id: str) -> str:
    """A fresh id that names the task: letters, digits, `.`, `_` and `-` only."""
    return f"{re.sub(r'[^A-Za-z0-9._-]+', '-', task_id)[-80:]}-{uuid.uuid4().hex[:12]}"


async def run_episode(request: EpisodeRequest, gateway: ModelGateway, server: GatewayServer | None = None) -> Episode:
    """Play one rollout. Without a server the harness reaches its model through `ctx.chat` only.

    EnvNotPrepared when the environment needs `platoon prepare` first; nothing else of the environment's escapes.
    """
    started = time.perf_counter()
    session: EnvSession | None = None
    with Boundary("environment", quiet=True) as caught:
        session = await _open(request)
    if isinstance(caught.error, EnvNotPrepared):
        raise caught.error  # no rollout of this run can be played
    if session is None:
        caught.report(expected=EnvSetupError)
        return Episode.failed("error", setup_outcome(caught), time.perf_counter() - started)
    try:
        return await _play(request, session, gateway, server, started)
    finally:
        await _closed(session)


async def _open(request: EpisodeRequest) -> EnvSession:
    service = request.route.service
    try:
        task = await service.get_task(request.task_id)
    except ValueError as error:
        raise EnvSetupError("env_config", str(error)) from error
    return await service.open(task, rollout_id=request.rollout_id)


async def _closed(session: EnvSession) -> None:
    """Close the session. The work goes on when the rollout is cancelled meanwhile; failures are logged."""

    async def close() -> None:
        with Boundary("environment"):
            await session.close()

    await asyncio.shield(in_background(close()))


async def _play(
    request: EpisodeRequest,
    session: EnvSession,
    gateway: ModelGateway,
    server: GatewayServer | None,
    started: float,
) -> Episode:
    limit = request.config.max_steps
    task = replace(session.task, max_steps=session.task.max_steps if limit is None else limit)
    if task.goal is None:
        task.goal = session.instruction
    root = _open_root(request, task, gateway)

    def collect(outcome: Outcome) -> TrajectoryCollection:
        agents, rollout_id = gateway.agents(request.rollout_id), request.rollout_id
        return build_trajectory_collection(
            agents, rollout_id=rollout_id, task=root.task, outcome=outcome, model_name=gateway.model_name
        )

    try:
        context = RolloutAgent(
            gateway,
            root,
            ToolPlane(session),
            session,
            task,
            session.instruction,
            request.route.harness_options,
            ModelEndpoint("", root.secret, gateway.model_name) if server is None else server.endpoint(root),
        )
        episode = _context(request, session, context, collect)
        outcome = await _run_program(request.route.program, episode)
        root.task = context.task
        if root.task.goal is None:
            root.task.goal = session.instruction
        outcome, collection = await _finalized(outcome, episode, collect)
        return _episode(collection, gateway.agents(request.rollout_id), outcome, time.perf_counter() - started)
    finally:
        gateway.close_rollout(request.rollout_id)


Collect = Callable[[Outcome], TrajectoryCollection]


def _context(request: EpisodeRequest, session: EnvSession, context: RolloutAgent, collect: Collect) -> EpisodeContext:
    limits = [request.config.timeout, getattr(session, "agent_timeout_s", None)]
    placeholder = Outcome("scored", {"reward": 0.0}, reason="snapshot")
    return EpisodeContext(
        task=context.task,
        session=session,
        config=request.config,
        route=request.route,
        context=context,
        timeout_s=min((limit for limit in limits if limit is not None), default=None),
        snapshot=lambda: collect(placeholder),
    )


async def _finalized(
    outcome: Outcome, episode: EpisodeContext, collect: Collect
) -> tuple[Outcome, TrajectoryCollection]:
    """The collection after the program's finalizers. A finalizer that raises makes it an error, built without them."""
    episode.root.outcome = outcome
    collection = collect(outcome)
    with Boundary("program") as caught:
        await finalize(collection, episode.finalizers)
    if caught.error is None:
        return outcome, collection
    failed = Outcome.infra(f"finalizer:{type(caught.error).__name__}", reason=f"a finalizer raised {caught.text}")
    episode.root.outcome = failed
    return failed, collect(failed)


def _open_root(request: EpisodeRequest, task: Task, gateway: ModelGateway) -> AgentSession:
    config, route = request.config, request.route
    root = gateway.open_agent(
        OpenAgent(
            request.rollout_id,
            role="policy",
            goal=task.goal,
            task=task,
            max_steps=task.max_steps,
            sampling=config.inference_params,
            sampling_precedence=config.sampling_precedence,
            seed_scope=request.seed_scope,
            timeline=_timeline(request.on_first_call),
        )
    )
    root.misc["harness"] = {
        "spec": route.harness.ref,
        "kind": "function",
        "runtime": route.harness.runtime,
        "executes_model_code": route.harness.executes_model_code,
        "program": route.program,
    }
    return root


def _timeline(on_first_call: Callable[[], None] | None) -> RolloutTimeline:
    return RolloutTimeline() if on_first_call is None else RolloutTimeline(lambda seconds: on_first_call())


async def _run_program(program: str, episode: EpisodeContext) -> Outcome:
    outcome: object = None
    with Boundary("program") as caught:
        outcome = await get_program(program)(episode)
    if caught.error is not None:
        return unexpected(caught, f"program {program} raised")
    if not isinstance(outcome, Outcome):
        text = f"program {program} returned {type(outcome).__name__}, not an Outcome"
        return Outcome.infra("unexpected:TypeError", reason=text)
    return outcome


def _episode(collection: TrajectoryCollection, agents: list[AgentSession], outcome: Outcome, seconds: float) -> Episode:
    root = agents[0]
    first = root.timeline.first_model_call_seconds
    error = outcome.reason if outcome.status != "scored" else None
    return Episode(
        collection=collection,
        interactions=root.interactions,
        outcome=outcome,
        disposition="completed" if collection.trajectories else "no_trajectories",
        seconds=seconds,
        error=error or (root.result.error if root.result is not None else None),
        first_call_seconds=None if first < 0 else first,
        call_spans=tuple((call.start, call.end) for agent in agents for call in agent.calls),
        call_seconds=tuple(root.timeline.calls),
    )
