"""The one parameter of a deployed run: what the UI's form shows.

Paths and values only: the config is read where the run executes, by `platoon.config.load`, which stays the authority.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from platoon.config import ConfigError, Loaded
from platoon.config.warnings import load_warnings

Resume = Literal["auto", "never", "must"]
log = logging.getLogger("platoon.config")


class RunParams(BaseModel):
    """Which run to start."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    config: str = Field(description="Path of the YAML config, on the machine that runs it.")
    overrides: list[str] = Field(default_factory=list, description="`key=value` overrides, applied in order.")
    resume: Resume = Field(
        default="auto",
        description="auto: go on where the run directory stands. never: refuse one that has checkpoints. "
        "must: refuse one that has none.",
    )


def check_resume(resume: Resume, run_dir: Path) -> None:
    """Refuse a run directory that `resume` rules out. ConfigError names the directory and the remedy."""
    ledger = run_dir / "checkpoints.jsonl"
    trained = ledger.is_file() and ledger.stat().st_size > 0
    if resume == "never" and trained:
        raise ConfigError(f"resume: never, but {run_dir} has checkpoints; use another trial_name, or resume: auto")
    if resume == "must" and not trained:
        raise ConfigError(f"resume: must, but {run_dir} has no checkpoint; check trial_name, or use resume: auto")


def told(loaded: Loaded) -> Loaded:
    """Log what the commands print about a configuration: the site profile, deprecated keys, doubts."""
    for line in loaded.site.lines():
        log.info(line)
    for text in [*map(str, loaded.deprecations), *load_warnings(loaded.config)]:
        log.warning(text)
    return loaded
