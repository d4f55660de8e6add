"""Where an evaluation writes, and the rule that one directory holds one policy's rollouts."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from platoon.config import ConfigError, EvalRun

COMPARED = ("backend", "model", "model_path", "renderer", "base_url_origin", "judges")


def policy_name(config: EvalRun) -> str:
    """The policy as a directory name: at most 100 characters of `A-Za-z0-9._-`."""
    inference = config.inference
    text = (inference.model_path or inference.model_name).partition("://")
    name = re.sub(r"[^A-Za-z0-9._-]+", "-", text[2] or text[0]).strip("-.")[-100:].lstrip("-.")
    return name or "policy"


def choose_output(config: EvalRun, root: Path) -> Path:
    """`inference.output_dir`, else a new directory `<root>/eval/<policy>/<UTC time>`, created here."""
    if config.inference.output_dir is not None:
        path = Path(config.inference.output_dir).expanduser().absolute()
        path.mkdir(parents=True, exist_ok=True)
        return path
    base = root / "eval" / policy_name(config)
    stamp = datetime.now(UTC).strftime("%Y%m%dT%H%M%SZ")
    for number in range(1, 10_000):
        path = base / (stamp if number == 1 else f"{stamp}-{number}")
        try:
            path.mkdir(parents=True, exist_ok=False)
        except FileExistsError:
            continue
        return path.absolute()
    raise ConfigError(f"{base}: no free directory name for {stamp}; set inference.output_dir")


def check_provenance(output: Path, provenance: Mapping[str, Any]) -> None:
    """Refuse a directory that holds rollouts of another policy. ConfigError names the first difference."""
    for path in sorted((output / "rollouts").glob("**/metadata.json")):
        try:
            recorded = json.loads(path.read_text(encoding="utf-8")).get("provenance") or {}
        except ValueError:
            continue  # a record that does not read is made again
        for key in COMPARED:
            if key in recorded and key in provenance and recorded[key] != provenance[key]:
                raise ConfigError(
                    f"inference.output_dir: {output} holds rollouts of another policy ({key} {recorded[key]!r}, "
                    f"now {provenance[key]!r}); name another directory"
                )
