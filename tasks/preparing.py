"""What `prepare` does for a config, one function a step: fetch the tokenizer, list an environment's tasks.

Each returns a line for the report, and can be tried again. A configuration error is raised (exit 78); what still fails
after its retries for another reason becomes a line with status `failed`, so that the other steps run.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import httpx

from platoon.config import ConfigError, EnvironmentConfig, EvalRun, TrainRun
from platoon.envs.contract import EnvSetupError
from platoon.envs.listing import list_rows
from platoon.envs.services import shared_service
from platoon.render import model_directory
from tasks.retrying import Retries, retried

RETRIES = Retries(on=(EnvSetupError, OSError, httpx.HTTPError))
Status = Literal["current", "done", "missing", "failed", "none"]


@dataclass(frozen=True)
class Prepared:
    """One step: what it was about (`policy` or `environments[<label>]`), which, and how it ended."""

    subject: str
    step: str
    status: Status
    detail: str

    def __str__(self) -> str:
        return f"{self.subject} {self.step}: {self.status}: {self.detail}"


def policy_model(config: TrainRun | EvalRun) -> str | None:
    """The model whose tokenizer the run needs; None where the policy is a hosted model."""
    if isinstance(config, TrainRun):
        return config.train.model_name
    inference = config.inference
    return None if inference.hosted is not None or inference.renderer_name is None else inference.model_name


async def attempted(
    name: str, subject: str, step: str, body: Callable[[], Awaitable[Prepared]], retries: Retries = RETRIES
) -> Prepared:
    """One step as a task called `name`."""
    try:
        return await retried(name, body, retries)
    except retries.on as error:
        return Prepared(subject, step, "failed", str(error) or type(error).__name__)


async def prepare_tokenizer(model_name: str | None, dry_run: bool) -> Prepared:
    """Make the tokenizer and template local. `dry_run` fetches nothing and says `missing` where it would."""
    if model_name is None:
        return Prepared("policy", "tokenizer", "none", "no policy is tokenized here")
    present = _present(model_name)
    if dry_run and not present:
        return Prepared("policy", "tokenizer", "missing", f"{model_name} is not on this machine yet")
    directory = await asyncio.to_thread(model_directory, model_name)
    return Prepared("policy", "tokenizer", "current" if present else "done", f"{model_name} in {directory}")


async def prepare_environment(entry: EnvironmentConfig, phase: Literal["train", "eval"]) -> Prepared:
    """Build the entry's service and list its tasks in one phase. Raises EnvSetupError; listing again is safe."""
    subject, step = f"environments[{entry.label}]", f"tasks ({phase})"
    if entry.service is None:
        raise ConfigError(f"{subject}.service: name the environment to play, or set env")
    rows = await list_rows(entry, phase, shared_service(entry.service, entry.service_kwargs))
    if not rows:
        return Prepared(subject, step, "none", f"{entry.service} lists no task")
    return Prepared(subject, step, "current", f"{len(rows)} tasks of {entry.service}")


def _present(model_name: str) -> bool:
    """Whether the model's tokenizer is local: shipped, a directory, or in the hub's cache."""
    name = Path(model_name).expanduser()
    if model_name.startswith(("platoon-", "platoon/", ".")) or name.is_absolute() or name.is_dir():
        return True
    from huggingface_hub import try_to_load_from_cache

    return isinstance(try_to_load_from_cache(model_name, "tokenizer.json"), str)
