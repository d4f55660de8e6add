"""Opening a policy to play, not to train: for `platoon eval` and `platoon rollout`.

A sampling session on the service of the config (or the embedded one), with a gateway and its HTTP server around it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from platoon.config import ConfigError
from platoon.config.service_address import LOCAL_KEY, ServiceAddress, is_local, service_address
from platoon.gateway import ModelGateway
from platoon.gateway.server import GatewayServer
from platoon.render import build_renderer
from platoon.train.failures import ServiceError, service_words, with_retries
from platoon.train.local_service import local_service
from platoon.train.opening import sample_timeout_seconds
from platoon.train.service import ServiceSession, TinkerSampler, probe, require_sdk

ABSENT = (400, 404, 422)


@dataclass(frozen=True)
class PolicySettings:
    """Which policy. `weights`: a tinker:// sampler path, None for the base model."""

    model_name: str
    renderer_name: str
    renderer_kwargs: Mapping[str, Any] = field(default_factory=dict)
    weights: str | None = None
    context_window_length: int | None = None
    sample_timeout_seconds: float | None = None
    tinker_base_url: str | None = None
    sampling_seed: int | None = None


@dataclass(frozen=True)
class OpenedPolicy:
    """A gateway that samples the policy, its HTTP server, and where the service is."""

    gateway: ModelGateway
    server: GatewayServer
    origin: str


@asynccontextmanager
async def open_policy(settings: PolicySettings, state_dir: Path, run: str) -> AsyncIterator[OpenedPolicy]:
    """Open the policy. ConfigError for a missing or refused key, an unknown model or a service that is not there."""
    require_sdk()
    async with AsyncExitStack() as stack:
        renderer = build_renderer(settings.model_name, settings.renderer_name, settings.renderer_kwargs)
        address = await _address(settings, state_dir, stack)
        stop = asyncio.Event()
        session = await with_retries(lambda: ServiceSession.open(address, run=run), address, "a session", stop)
        assert session is not None, "nothing asks this wait to stop"
        stack.push_async_callback(session.close)
        models = await session.models()
        if models and settings.model_name not in models:
            served = ", ".join(sorted(models))
            raise ConfigError(f"model_name: {settings.model_name!r} is not served at {address.origin}; it has {served}")

        async def sampler() -> TinkerSampler:
            if settings.weights is None:
                return await session.base_sampler(settings.model_name)
            return await _saved_sampler(session, settings.weights)

        sampled = await with_retries(sampler, address, f"a sampler on {settings.weights or settings.model_name}", stop)
        assert sampled is not None, "nothing asks this wait to stop"
        gateway = ModelGateway(
            sampler=sampled,
            renderer=renderer,
            model_name=settings.model_name,
            context_window_length=settings.context_window_length or models.get(settings.model_name),
            sample_timeout_seconds=sample_timeout_seconds(settings.sample_timeout_seconds),
            sampling_seed=settings.sampling_seed,
        )
        server = await stack.enter_async_context(GatewayServer(gateway))
        yield OpenedPolicy(gateway, server, address.origin)


async def _saved_sampler(session: ServiceSession, weights: str) -> TinkerSampler:
    """A sampler on saved weights. ConfigError when the service does not have them."""
    import tinker

    try:
        return await session.sampler(weights)
    except tinker.APIStatusError as error:
        if error.status_code not in ABSENT:
            raise
        words = service_words(error, session.address)
        raise ConfigError(
            f"model_path: {weights} is not at {session.address.origin} ({words}); the embedded service has the "
            "weights of the run it is started for: name the run directory instead"
            if session.address.api_key == LOCAL_KEY
            else f"model_path: {weights} is not at {session.address.origin} ({words})"
        ) from None


async def _address(settings: PolicySettings, state_dir: Path, stack: AsyncExitStack) -> ServiceAddress:
    if is_local(settings.tinker_base_url):
        url = await stack.enter_async_context(local_service(state_dir, settings.model_name))
        return ServiceAddress.embedded(url)
    address = service_address(settings.tinker_base_url)
    try:
        await probe(address)
    except ServiceError as error:
        raise ConfigError(f"tinker_base_url: {error}; start the service or correct the URL") from error
    return address
