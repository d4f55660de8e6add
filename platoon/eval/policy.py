"""The policy under evaluation: a gateway that samples it, and what identifies it.

How the policy is opened (which service, which key) is the caller's: `OpenPolicy` is passed in.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from platoon.config import ConfigError, EvalRun
from platoon.gateway import ModelGateway
from platoon.gateway.server import GatewayServer

CHECKPOINTS = "checkpoints.jsonl"


@dataclass(frozen=True)
class WeightsSource:
    """Which weights to sample. `path`: sampler weights, None for the base model. `run_dir`: the run they come from."""

    path: str | None
    run_dir: Path | None


@dataclass(frozen=True)
class Policy:
    """An open policy. `provenance` is recorded beside every rollout and compared on resume."""

    gateway: ModelGateway
    server: GatewayServer | None
    provenance: Mapping[str, Any]


OpenPolicy = Callable[[EvalRun, WeightsSource, Path], AbstractAsyncContextManager[Policy]]


def weights_source(model_path: str | None) -> WeightsSource:
    """`model_path` as the config gives it: nothing, a tinker:// path, or a run directory (its newest checkpoint)."""
    if model_path is None:
        return WeightsSource(None, None)
    if model_path.startswith("tinker://"):
        return WeightsSource(model_path, None)
    run_dir = Path(model_path).expanduser().absolute()
    newest: str | None = None
    try:
        lines = (run_dir / CHECKPOINTS).read_bytes().split(b"\n")
    except OSError as error:
        raise ConfigError(
            f"inference.model_path: {model_path!r} is neither a tinker:// path nor a run directory ({error})"
        ) from error
    for line in lines:
        try:
            row = json.loads(line)
        except ValueError:
            continue  # a torn last line: its checkpoint does not count
        if isinstance(row, dict) and row.get("sampler_path"):
            newest = str(row["sampler_path"])
    if newest is None:
        raise ConfigError(f"inference.model_path: the run in {run_dir} has no checkpoint yet")
    return WeightsSource(newest, run_dir)
