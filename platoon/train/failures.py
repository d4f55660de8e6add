"""What a training service's failures mean: wrong key, not ready yet, gone, or refused for good.

One vocabulary for the session, the opening of a run and pruning. Nothing here talks to a service.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, TypeVar

import httpx

from platoon.config import ConfigError
from platoon.config.service_address import ServiceAddress
from platoon.train.quirks import adapters_full

log = logging.getLogger("platoon.service")
T = TypeVar("T")
OPEN_TIMEOUT_SECONDS = 1200.0
RETRY_WAITS = (5.0, 10.0, 20.0, 40.0, 60.0)
FINAL_STATUSES = frozenset({401, 403, 404, 422})


class ServiceError(RuntimeError):
    """The training service did not do what was asked within its deadline, or refused it."""


class DeletionUnsupported(ServiceError):
    """The service has no way to delete a checkpoint."""


def status_of(error: BaseException | None) -> int | None:
    """The HTTP status behind an error, also where the SDK wrapped it in another one."""
    for link in (error, *((error.__cause__, error.__context__) if error is not None else ())):
        status = getattr(link, "status_code", None)
        if isinstance(status, int):
            return status
    return None


def refused_key(error: BaseException, address: ServiceAddress, asked_for: str) -> ConfigError | None:
    """The one-line configuration error for HTTP 401 or 403 (also as the cause of another error), else None."""
    for link in (error, error.__cause__, error.__context__):
        status = getattr(link, "status_code", None)
        if status in (401, 403):
            return ConfigError(
                [
                    f"{address.key_name} was refused by {address.origin} (HTTP {status}) when asked for {asked_for}: "
                    f"{service_words(link, address)}"
                ]
            )
    return None


def service_words(error: BaseException | None, address: ServiceAddress) -> str:
    """What the service itself said, at most 300 characters, never with the key in it."""
    body = getattr(error, "body", None)
    words: Any = body
    if isinstance(body, Mapping):
        words = next((body[k] for k in ("detail", "error", "message") if body.get(k)), body)
        if isinstance(words, Mapping):
            words = words.get("message", words)
    text = str(words if words else error)
    if address.api_key:
        text = text.replace(address.api_key, f"${address.key_name}")
    return " ".join(text.split())[:300]


def final(error: BaseException) -> bool:
    """True for a refusal that no wait mends: HTTP 401, 403, 404, 422, or a request that failed as the user's error."""
    if adapters_full(error):
        return False
    links = [link for link in (error, error.__cause__) if link is not None]
    return any(
        getattr(one, "status_code", None) in FINAL_STATUSES or getattr(one, "category", "") == "user" for one in links
    )


def retryable(error: BaseException) -> bool:
    """True for what a service that is starting or overloaded says."""
    import tinker

    if final(error):
        return False
    for link in (error, error.__cause__):
        if link is None:
            continue
        if adapters_full(link):
            return True
        if isinstance(link, tinker.TinkerError | ConnectionError | TimeoutError | httpx.TransportError | ServiceError):
            return True
    return False


async def _unless(stop: asyncio.Event, attempt: Callable[[], Awaitable[T]]) -> T | None:
    """The answer, or None when `stop` is set before: an attempt at a service that is gone takes the SDK minutes."""
    asked, told = asyncio.ensure_future(attempt()), asyncio.ensure_future(stop.wait())
    try:
        await asyncio.wait({asked, told}, return_when=asyncio.FIRST_COMPLETED)
        return asked.result() if asked.done() else None
    finally:
        told.cancel()
        asked.cancel()


async def with_retries(
    attempt: Callable[[], Awaitable[T]], address: ServiceAddress, asked_for: str, stop: asyncio.Event
) -> T | None:
    """Run `attempt` until it answers, for up to 20 minutes (waits 5, 10, 20, 40, 60, 60 … s).

    Returns None when `stop` is set meanwhile. A refused key is a ConfigError at once; what is `final`, and what no
    service said, is raised at once; the last error is raised when the time is over.
    """
    import tinker

    # the SDK wraps transport errors in its own and in ValueError
    asked = (tinker.TinkerError, ValueError, RuntimeError, OSError, TimeoutError, httpx.HTTPError)
    clock = asyncio.get_running_loop().time
    deadline = clock() + OPEN_TIMEOUT_SECONDS
    for number in range(1_000_000):
        try:
            return await _unless(stop, attempt)
        except asked as error:
            refused = refused_key(error, address, asked_for)
            if refused is not None:
                raise refused from error
            wait = RETRY_WAITS[min(number, len(RETRY_WAITS) - 1)]
            if not retryable(error) or clock() + wait > deadline:
                raise
            log.warning("%s: %s; trying again in %.0f s", asked_for, str(error)[:500], wait)
        try:
            await asyncio.wait_for(stop.wait(), wait)
            return None
        except TimeoutError:
            continue
    return None
