"""Opening the training service for a run: embedded or remote, fresh or resumed.

A fresh run finds out within seconds, before anything is imported or written, that nobody answers. A resume waits: a
service that restarts is no reason to lose days of work.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from platoon.config import ConfigError, TrainRun
from platoon.config.service_address import (
    ServiceAddress,
    is_local,
    sample_timeout_from_environment,
    service_address,
)
from platoon.train.checkpoints import Checkpoint
from platoon.train.failures import ServiceError, final, service_words, status_of, with_retries
from platoon.train.local_service import LocalService, LocalServiceError, running_service
from platoon.train.service import ServiceSession, probe, require_sdk

log = logging.getLogger("platoon.train")
DEFAULT_SAMPLE_SECONDS = 600.0


async def find_service(config: TrainRun, *, resuming: bool) -> ServiceAddress | None:
    """The remote service's address, asked whether it is there unless the run resumes; None for the embedded one.

    ConfigError for a missing key, and for a fresh run that nobody answers.
    """
    require_sdk()
    if is_local(config.tinker_base_url):
        return None
    address = service_address(config.tinker_base_url)
    if not resuming:
        try:
            await probe(address)
        except ServiceError as error:
            raise ConfigError(
                f"tinker_base_url: {error}; start the service, correct the URL, or use tinker_base_url: local"
            ) from error
    return address


@dataclass(frozen=True)
class Service:
    """Where to speak to, and the embedded service behind it if this run started one."""

    address: ServiceAddress
    local: LocalService | None = None

    def ended(self) -> Coroutine[Any, Any, None] | None:
        """Fails as soon as the embedded service is gone; None for a remote one, which may come back."""
        return self.local.ended() if self.local is not None else None


async def start_service(
    config: TrainRun, address: ServiceAddress | None, state_dir: Path, stack: AsyncExitStack
) -> Service:
    """The service to speak to; the embedded one is started first and ends with `stack`."""
    if address is not None:
        return Service(address)
    try:
        local = await stack.enter_async_context(running_service(state_dir, config.train.model_name))
    except LocalServiceError as error:
        raise ServiceError(str(error)) from error
    return Service(ServiceAddress.embedded(local.url), local)


async def open_session(
    config: TrainRun, address: ServiceAddress, run: str, resume: Checkpoint | None, stop: asyncio.Event
) -> tuple[ServiceSession, int | None] | None:
    """A session with its training client, and the model's context length if the service tells it.

    None when `stop` was set meanwhile. ConfigError for a refused key and for a model that the service does not have.
    """
    from tinker import TinkerError

    try:
        session = await with_retries(lambda: ServiceSession.open(address, run=run), address, "a session", stop)
    except (TinkerError, ValueError) as error:
        if status_of(error) not in (404, 405, 422):
            raise
        raise ConfigError(
            f"tinker_base_url: what answers at {address.origin} does not speak the protocol of tinker "
            f"{version('tinker')} ({service_words(error, address)}); use a service made for that version of the SDK"
        ) from error
    if session is None:
        return None
    length: tuple[int | None] | None = None
    try:
        length = await _prepare(config, session, resume, stop)
        return None if length is None else (session, *length)
    finally:
        if length is None:
            await session.close()


async def _prepare(
    config: TrainRun, session: ServiceSession, resume: Checkpoint | None, stop: asyncio.Event
) -> tuple[int | None] | None:
    """Give the session its training client and check what the run needs; the context length, None when stopped."""
    from tinker import TinkerError

    train, address = config.train, session.address
    session.sequence_mean = train.loss_reduction == "sequence_mean"
    models = await with_retries(session.models, address, "the list of models", stop)
    if models is None:
        return None
    check_model(config, models, address)

    begin = beginning(config, resume)

    async def client() -> bool:
        if begin.path is None:
            await session.create(train.model_name, train.lora_rank)
        else:
            await session.load(train.model_name, train.lora_rank, begin.path, optimizer=begin.optimizer)
        return True

    try:
        if await with_retries(client, address, "a training client", stop) is None:
            return None
    except (TinkerError, ValueError) as error:
        if not final(error):
            raise
        raise ConfigError(f"{begin.refused}: {address.origin} says: {service_words(error, address)}") from error
    log.info("training begins with %s; the loss is %s as a %s", begin.words, train.loss_fn, train.loss_reduction)
    await check_loss(config, session)
    return (models.get(train.model_name),)


@dataclass(frozen=True)
class Beginning:
    """What a training client begins with. `path`: what it loads, None for fresh weights. `refused`: what to do then."""

    path: str | None
    optimizer: bool
    words: str
    refused: str


def beginning(config: TrainRun, resume: Checkpoint | None) -> Beginning:
    """The resume point with its optimizer, else the configured weights without one, else fresh weights."""
    train, path = config.train, config.checkpoint.load_checkpoint_path
    if resume is not None:
        refused = (
            f"checkpoint {resume.name} ({resume.state_path}) cannot be loaded; use the service and key that saved it, "
            "or remove its row from checkpoints.jsonl to go on from the checkpoint before it"
        )
        return Beginning(resume.state_path, True, f"checkpoint {resume.name} and its optimizer", refused)
    if path:
        refused = f"checkpoint.load_checkpoint_path: {path} cannot be loaded; correct it"
        return Beginning(path, False, f"the weights of {path} and a fresh optimizer", refused)
    refused = f"train.model_name, train.lora_rank: no client for {train.model_name} at rank {train.lora_rank}"
    return Beginning(None, False, "fresh weights", refused)


def check_model(config: TrainRun, models: Mapping[str, int | None], address: ServiceAddress) -> None:
    """ConfigError for a model that is not served, or a context longer than it has; warns when nobody says how long."""
    train = config.train
    if models and train.model_name not in models:
        served = ", ".join(sorted(models))
        raise ConfigError(f"train.model_name: {train.model_name!r} is not served at {address.origin}; it has {served}")
    length = models.get(train.model_name)
    if length is None and train.context_window_length is None:
        log.warning(
            "the service at %s does not say how long the context of %s is; set train.context_window_length, or a "
            "prompt that does not fit fails at the service",
            address.origin,
            train.model_name,
        )
    if length is not None and train.context_window_length is not None and train.context_window_length > length:
        raise ConfigError(
            f"train.context_window_length: {train.context_window_length} is more than the {length} tokens that "
            f"{address.origin} gives {train.model_name}; lower it, or remove the key"
        )


async def check_loss(config: TrainRun, session: ServiceSession) -> None:
    """Ask for the loss once, without a gradient. ConfigError when the service refuses it, before anything is drawn."""
    train = config.train
    try:
        await session.try_loss(train.loss_fn, train.loss_fn_config, train.forward_backward_timeout_seconds)
    except ServiceError as error:
        raise ConfigError(
            f"train.loss_fn: {session.address.origin} does not compute {train.loss_fn!r} with "
            f"{dict(train.loss_fn_config)}: {error}; choose another loss or correct train.loss_fn_config"
        ) from error


def sample_timeout_seconds(configured: float | None) -> float:
    """Seconds one model call may take: as configured, else the environment's, else 600. The source is logged."""
    if configured is not None:
        seconds, source = configured, "sample_timeout_seconds"
    else:
        from_environment = sample_timeout_from_environment()
        seconds = DEFAULT_SAMPLE_SECONDS if from_environment is None else from_environment
        source = "the default" if from_environment is None else "TINKER_SAMPLE_TIMEOUT_SECONDS"
    log.info("a model call may take %.0f s (%s)", seconds, source)
    return seconds
