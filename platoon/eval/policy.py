"""The policy under evaluation: which weights, what identifies it, and a gateway that samples it.

How the policy is opened (which service, which key) is the caller's: `OpenPolicy` is passed in.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from platoon.config import ConfigError, EvalRun
from platoon.config.service_address import is_local, service_address
from platoon.gateway import ModelGateway
from platoon.gateway.server import GatewayServer
from platoon.stats.jsonl import read_jsonl

CHECKPOINTS = "checkpoints.jsonl"
log = logging.getLogger("platoon.eval")


@dataclass(frozen=True)
class WeightsSource:
    """Which weights to sample. `path`: sampler weights, None for the base model. `run_dir`: the run they come from."""

    path: str | None
    run_dir: Path | None = None


@dataclass(frozen=True)
class Policy:
    """An open policy."""

    gateway: ModelGateway
    server: GatewayServer | None


OpenPolicy = Callable[[EvalRun, WeightsSource, Path], AbstractAsyncContextManager[Policy]]


def weights_source(model_path: str | None) -> WeightsSource:
    """`model_path` as the config gives it: nothing, a tinker:// path, or a run directory (its newest checkpoint).

    A relative run directory is below the working directory. ConfigError when it is no run, or has no checkpoint yet.
    """
    if model_path is None or model_path.startswith("tinker://"):
        return WeightsSource(model_path)
    run_dir = run_directory_of(model_path)
    if not run_dir.is_dir():
        raise ConfigError(
            f"inference.model_path: {model_path!r} is neither a tinker:// path of sampler weights nor a run directory "
            f"({run_dir} does not exist); train the run first, or correct the path"
        )
    found = read_jsonl(run_dir / CHECKPOINTS)
    for problem in found.problems:
        log.warning("%s", problem)
    for row in reversed(found.rows):
        if row.get("sampler_path"):
            return WeightsSource(str(row["sampler_path"]), run_dir)
    raise ConfigError(f"inference.model_path: the run in {run_dir} has no checkpoint with sampler weights yet")


def run_directory_of(model_path: str) -> Path:
    return Path(model_path).expanduser().absolute()


def policy_record(
    model: str, renderer: str | None, weights: str | None, tinker_base_url: str | None
) -> dict[str, str | None]:
    """What `lock.json` says of a policy. ConfigError for a missing key of a service elsewhere."""
    origin = "local" if is_local(tinker_base_url) else service_address(tinker_base_url).origin
    return {
        "backend": "tinker",
        "model": model,
        "model_path": weights,
        "renderer": renderer,
        "base_url_origin": origin,
    }


def provenance(config: EvalRun, source: WeightsSource | None) -> dict[str, Any]:
    """What identifies the policy; recorded beside every rollout and compared before more are added.

    ConfigError for a missing key of a service elsewhere. Without a source (the report alone needs no policy) it is
    what the config itself says.
    """
    inference = config.inference
    if source is not None:
        url = config.tinker_base_url
        return {
            **policy_record(inference.model_name, inference.renderer_name, source.path, url),
            "judges": inference.judges,
        }
    found = {
        "backend": "tinker",
        "model": inference.model_name,
        "renderer": inference.renderer_name,
        "judges": inference.judges,
    }
    moving = inference.model_path is not None and not inference.model_path.startswith("tinker://")
    return found if moving else {**found, "model_path": inference.model_path}
