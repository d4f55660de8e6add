"""Which Prefect API records a run, decided without importing Prefect.

`choose_api` implements `orchestration: auto | require | off`. Nothing here starts a server: a run is recorded by a
server that already answers, or it is not recorded.
"""

from __future__ import annotations

import base64
import json
import logging
import os
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import httpx

from platoon.config import ConfigError

Orchestration = Literal["auto", "require", "off"]
HEALTH_SECONDS = 2.0
VARIABLE = "PLATOON_ORCHESTRATION"
log = logging.getLogger("platoon.orchestration")


@dataclass(frozen=True)
class Endpoint:
    """Address of an API (ending in `/api`) and the headers its health check needs."""

    url: str
    headers: Mapping[str, str]


def server_directory() -> Path:
    """Where the user's own server keeps its database, log and record (`$XDG_CACHE_HOME/platoon/server`)."""
    cache = os.environ.get("XDG_CACHE_HOME")
    return (Path(cache) if cache else Path.home() / ".cache") / "platoon" / "server"


def server_record() -> dict[str, Any] | None:
    """The record `{url, pid, started}` that `platoon server start` left, whether or not it still runs."""
    try:
        record = json.loads((server_directory() / "server.json").read_text())
    except (OSError, ValueError):
        return None
    return record if isinstance(record, dict) and isinstance(record.get("url"), str) else None


def healthy(endpoint: Endpoint, seconds: float = HEALTH_SECONDS) -> bool:
    """Whether `GET <url>/health` answers 2xx within `seconds`."""
    try:
        reply = httpx.get(f"{endpoint.url}/health", headers=dict(endpoint.headers), timeout=seconds)
    except (httpx.HTTPError, httpx.InvalidURL):
        return False
    return reply.is_success


def configured_endpoint() -> Endpoint | None:
    """The API of the environment, `prefect.toml`, `pyproject.toml` or the active profile, in Prefect's order."""
    settings = {**_profile_settings(), **_project_settings(), **os.environ}
    url = settings.get("PREFECT_API_URL", "")
    return Endpoint(url.rstrip("/"), _headers(settings)) if url else None


def choose_api(orchestration: Orchestration) -> Endpoint | None:
    """The API that records this run, or None when it runs unrecorded.

    `PLATOON_ORCHESTRATION` applies when the config says `auto`. Raises ConfigError (exit 78) under `require` when no
    API answers; under `auto` says so in one line.
    """
    mode = _effective(orchestration)
    if mode == "off":
        return None
    configured = configured_endpoint()
    if configured and healthy(configured):
        return configured
    record = server_record()
    if record:
        own = Endpoint(record["url"], {})
        if healthy(own):
            return own
    asked = f"{configured.url} does not answer" if configured else "no PREFECT_API_URL is set"
    if mode == "require":
        raise ConfigError(
            [f"orchestration: require needs a Prefect server: {asked}, and `platoon server` does not run. "
             "Start one with `platoon server start`, or use `orchestration: auto`."]
        )  # fmt: skip
    log.info("not recorded in Prefect: %s, and no `platoon server` runs", asked)
    return None


def _effective(orchestration: Orchestration) -> Orchestration:
    variable = os.environ.get(VARIABLE, "")
    if orchestration != "auto" or not variable:
        return orchestration
    for mode in ("auto", "require", "off"):
        if variable == mode:
            return mode
    raise ConfigError([f"{VARIABLE}={variable!r}: expected auto, require or off"])


def _headers(settings: Mapping[str, str]) -> dict[str, str]:
    if key := settings.get("PREFECT_API_KEY"):
        return {"Authorization": f"Bearer {key}"}
    if auth := settings.get("PREFECT_API_AUTH_STRING"):
        return {"Authorization": "Basic " + base64.b64encode(auth.encode()).decode()}
    return {}


def _profile_settings() -> dict[str, str]:
    """The active profile's settings. Read here so that an unrecorded run does not pay 1.5 s to import Prefect."""
    home = Path(os.environ.get("PREFECT_HOME") or Path.home() / ".prefect").expanduser()
    profiles = _toml(Path(os.environ.get("PREFECT_PROFILES_PATH") or home / "profiles.toml"))
    name = os.environ.get("PREFECT_PROFILE") or profiles.get("active")
    chosen = profiles.get("profiles", {}).get(name, {})
    return {key: str(value) for key, value in chosen.items()}


def _project_settings() -> dict[str, str]:
    tables = (_toml(Path("pyproject.toml")).get("tool", {}).get("prefect", {}), _toml(Path("prefect.toml")))
    names = {"url": "PREFECT_API_URL", "key": "PREFECT_API_KEY", "auth_string": "PREFECT_API_AUTH_STRING"}
    return {names[key]: str(value) for table in tables for key, value in table.get("api", {}).items() if key in names}


def _toml(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text())
    except (OSError, tomllib.TOMLDecodeError):
        return {}
