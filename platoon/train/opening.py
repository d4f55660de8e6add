"""Opening the training service for a run: embedded or remote, fresh or resumed.

A fresh run finds out within seconds, before anything is imported or written, that nobody answers. A resume waits: a
service that restarts is no reason to lose days of work.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import AsyncExitStack
from pathlib import Path

from platoon.config import ConfigError, TrainRun
from platoon.config.service_address import (
    ServiceAddress,
    is_local,
    sample_timeout_from_environment,
    service_address,
)
from platoon.train.checkpoints import Checkpoint
from platoon.train.failures import ServiceError, with_retries
from platoon.train.local_service import LocalServiceError, local_service
from platoon.train.service import ServiceSession, probe

log = logging.getLogger("platoon.train")
DEFAULT_SAMPLE_SECONDS = 600.0


async def find_service(config: TrainRun, *, resuming: bool) -> ServiceAddress | None:
    """The remote service's address, asked whether it is there unless the run resumes; None for the embedded one.

    ConfigError for a missing key, and for a fresh run that nobody answers.
    """
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


async def start_service(
    config: TrainRun, address: ServiceAddress | None, state_dir: Path, stack: AsyncExitStack
) -> ServiceAddress:
    """The address to speak to; the embedded service is started first and ends with `stack`."""
    if address is not None:
        return address
    try:
        url = await stack.enter_async_context(local_service(state_dir, config.train.model_name))
    except LocalServiceError as error:
        raise ServiceError(str(error)) from error
    return ServiceAddress.embedded(url)


async def open_session(
    config: TrainRun, address: ServiceAddress, run: str, resume: Checkpoint | None, stop: asyncio.Event
) -> tuple[ServiceSession, int | None] | None:
    """A session with its training client, and the model's context length if the service tells it.

    None when `stop` was set meanwhile. ConfigError for a refused key and for a model that the service does not have.
    """
    train = config.train
    session = await with_retries(lambda: ServiceSession.open(address, run=run), address, "a session", stop)
    if session is None:
        return None
    models = await with_retries(session.models, address, "the list of models", stop)
    if models is None:
        return None
    if models and train.model_name not in models:
        served = ", ".join(sorted(models))
        raise ConfigError(f"train.model_name: {train.model_name!r} is not served at {address.origin}; it has {served}")

    async def client() -> bool:
        if resume is not None:
            await session.load(train.model_name, train.lora_rank, resume.state_path, optimizer=True)
        elif config.checkpoint.load_checkpoint_path:
            path = config.checkpoint.load_checkpoint_path
            await session.load(train.model_name, train.lora_rank, path, optimizer=False)
        else:
            await session.create(train.model_name, train.lora_rank)
        return True

    if await with_retries(client, address, "a training client", stop) is None:
        return None
    return session, models.get(train.model_name)


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
