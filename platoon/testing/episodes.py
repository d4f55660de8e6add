"""Plays one rollout against a scripted policy: real environment, real harness, real gateway, toy model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Literal

from platoon.config.entries import AgentsConfig, OnHarnessExit
from platoon.config.rollout import RolloutConfig
from platoon.envs.contract import EnvironmentService
from platoon.gateway import ModelGateway, Sampler
from platoon.gateway.server import GatewayServer
from platoon.harness.registry import FunctionHarness, get_harness
from platoon.render import Renderer
from platoon.rollout.episode import Episode, EpisodeRequest, new_rollout_id
from platoon.rollout.episode import run_episode as play
from platoon.rollout.outcome import Outcome
from platoon.rollout.route import Route
from platoon.rollout.trajectory import Interactions, Trajectory, TrajectoryCollection
from platoon.testing.gateways import make_gateway
from platoon.testing.policy import Script
from platoon.testing.toy import toy_renderer


@dataclass(frozen=True)
class EpisodeRun:
    """A played rollout and what it was played with."""

    episode: Episode
    gateway: ModelGateway
    policy: Any

    @property
    def collection(self) -> TrajectoryCollection:
        """AssertionError with the reason when the rollout never started."""
        assert self.episode.collection is not None, f"the rollout left no trajectory: {self.episode.error}"
        return self.episode.collection

    @property
    def interactions(self) -> Interactions:
        return self.episode.interactions

    @property
    def trajectories(self) -> list[Trajectory]:
        return list(self.collection.trajectories.values())

    @property
    def root(self) -> Trajectory:
        return self.collection.root

    @property
    def outcome(self) -> Outcome:
        return self.episode.outcome

    @property
    def reward(self) -> float | None:
        return self.outcome.reward


@dataclass(frozen=True)
class Play:
    """What is played besides the task. `service`: a reference, or a service object."""

    service: str | EnvironmentService
    harness: str | FunctionHarness = "platoon-react"
    service_kwargs: Mapping[str, Any] = field(default_factory=dict)
    harness_options: Mapping[str, Any] = field(default_factory=dict)
    program: str = "single"
    agents: AgentsConfig = field(default_factory=AgentsConfig)
    on_harness_exit: OnHarnessExit = field(default_factory=OnHarnessExit)
    on_context_overflow: Literal["grade", "exclude"] = "grade"
    max_steps: int | None = None
    rollout: Mapping[str, Any] = field(default_factory=dict)

    def route(self) -> Route:
        made = None if isinstance(self.service, str) else self.service
        return Route(
            label="default",
            harness=get_harness(self.harness) if isinstance(self.harness, str) else self.harness,
            service_reference=self.service if isinstance(self.service, str) else "",
            service_kwargs=self.service_kwargs,
            harness_options=self.harness_options,
            program=self.program,
            agents=self.agents,
            on_harness_exit=self.on_harness_exit,
            on_context_overflow=self.on_context_overflow,
            made_service=made,
        )

    def config(self) -> RolloutConfig:
        steps = {} if self.max_steps is None else {"max_steps": self.max_steps}
        return RolloutConfig.model_validate({"verbose": False, **self.rollout, **steps})


@cache
def _renderer() -> Renderer:
    """Compiling a template takes longer than a short rollout, and rollouts share a renderer anyway."""
    return toy_renderer()


async def run_episode(
    task_id: str,
    *,
    policy: Sampler | Script | None = None,
    gateway: ModelGateway | None = None,
    server: GatewayServer | None = None,
    **play_with: Any,
) -> EpisodeRun:
    """Play `task_id`. `policy`: a sampler, or a script for one; `play_with`: the fields of `Play`."""
    if gateway is None:
        gateway = make_gateway([] if policy is None else policy, renderer=_renderer())
    settings = Play(**play_with)
    request = EpisodeRequest(task_id, settings.route(), settings.config(), new_rollout_id(task_id))
    return EpisodeRun(await play(request, gateway, server), gateway, policy)
