"""Where the training service is, and the key for it: the config's `tinker_base_url`, else the environment's.

No other module reads TINKER_API_KEY or TINKER_BASE_URL.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from urllib.parse import urlsplit

from platoon.config.problems import ConfigError

HOSTED_URL = "https://tinker.thinkingmachines.dev/services/tinker-prod"
KEY = "TINKER_API_KEY"
LOCAL_KEY = "tml-local"


@dataclass(frozen=True)
class ServiceAddress:
    """A service's URL without trailing slash, its key, and the name of the variable that held it."""

    base_url: str
    api_key: str
    key_name: str = KEY

    @property
    def origin(self) -> str:
        """scheme://host:port, without user information."""
        parts = urlsplit(self.base_url)
        return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}"

    @classmethod
    def embedded(cls, url: str) -> ServiceAddress:
        """The embedded service that this run started."""
        return cls(url.rstrip("/"), LOCAL_KEY)


def is_local(configured: str | None) -> bool:
    """True when the run starts its own embedded service."""
    return configured == "local"


def service_address(configured: str | None) -> ServiceAddress:
    """The service that a run speaks to. ConfigError, in one line, when its key is missing or cannot be one."""
    url = (configured or os.environ.get("TINKER_BASE_URL") or HOSTED_URL).rstrip("/")
    key = os.environ.get(KEY, "")
    if not key:
        raise ConfigError([f"{KEY} is not set; set it to a key of the service at {url}, or use tinker_base_url: local"])
    if not key.startswith(("tml-", "eyJ")):
        raise ConfigError([f"{KEY} does not start with tml-; set it to a key of the service at {url}"])
    return ServiceAddress(url, key)


def sample_timeout_from_environment() -> float | None:
    """TINKER_SAMPLE_TIMEOUT_SECONDS in seconds, None when unset. ConfigError unless it is finite and above 0."""
    text = os.environ.get("TINKER_SAMPLE_TIMEOUT_SECONDS")
    if not text:
        return None
    try:
        seconds = float(text)
    except ValueError:
        seconds = float("nan")
    if not 0 < seconds < float("inf"):
        raise ConfigError(
            [f"TINKER_SAMPLE_TIMEOUT_SECONDS is {text!r}; set it to a number of seconds above 0, or unset it"]
        )
    return seconds
