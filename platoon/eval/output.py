"""Where an evaluation writes, and the rule that one directory holds one policy's rollouts."""

from __future__ import annotations

import hashlib
import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from platoon.config import ConfigError, EvalRun, Loaded
from platoon.eval.policy import run_directory_of

ROLLOUTS, METADATA = "rollouts", "metadata.json"
LONGEST_NAME = 200
COMPARED = ("backend", "model", "model_path", "renderer", "base_url_origin", "judges")
UNRECORDED: dict[str, Any] = {"backend": "tinker", "judges": True}


def policy_name(config: EvalRun) -> str:
    """The policy as a directory name: at most 100 characters of `A-Za-z0-9._-`."""
    inference = config.inference
    text = (inference.model_path or inference.model_name).partition("://")
    name = re.sub(r"[^A-Za-z0-9._-]+", "-", text[2] or text[0]).strip("-.")[-100:].lstrip("-.")
    return name or "policy"


def choose_output(config: EvalRun, root: Path) -> Path:
    """`inference.output_dir`, which the lock makes, else a new directory `<root>/eval/<policy>/<UTC time>`."""
    if config.inference.output_dir is not None:
        return Path(config.inference.output_dir).expanduser().absolute()
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


def pinned(loaded: Loaded, output: Path) -> Loaded:
    """The config with this output directory and an absolute run directory: loaded again, it goes on with this one."""
    inference = {**loaded.data["inference"], "output_dir": str(output)}
    path = loaded.eval_config.inference.model_path
    if path is not None and not path.startswith("tinker://"):
        inference["model_path"] = str(run_directory_of(path))
    return replace(loaded, data={**loaded.data, "inference": inference})


def rollout_files(output: Path) -> Iterator[Path]:
    """The metadata file of every kept rollout, in no particular order."""
    yield from (output / ROLLOUTS).glob(f"*/rollout_*/{METADATA}")


def check_provenance(output: Path, provenance: Mapping[str, Any]) -> None:
    """Refuse a directory that holds rollouts of another policy. ConfigError names the first difference."""
    for path in sorted(rollout_files(output)):
        recorded = _recorded(path)
        for key in COMPARED:
            if key in recorded and key in provenance and recorded[key] != provenance[key]:
                raise ConfigError(
                    f"inference.output_dir: {output} holds rollouts of another policy ({key} {recorded[key]!r}, "
                    f"now {provenance[key]!r}); name another directory"
                )


def _recorded(path: Path) -> dict[str, Any]:
    """The provenance of a rollout; empty for a record that does not read, which is made again."""
    try:
        metadata = json.loads(path.read_bytes())
    except ValueError:
        return {}
    if not isinstance(metadata, dict):
        return {}
    recorded = metadata.get("provenance")
    return {"backend": None, **recorded} if isinstance(recorded, dict) else UNRECORDED


def set_aside(output: Path) -> Path | None:
    """Move the rollouts of an earlier evaluation away; returns where to, None when there were none."""
    if not (output / ROLLOUTS).exists():
        return None
    stamp = datetime.now(UTC).strftime("%Y%m%dT%H%M%S%fZ")
    return (output / ROLLOUTS).rename(output / f"{ROLLOUTS}-before-{stamp}")


def directory_names(task_ids: Sequence[str]) -> dict[str, str]:
    """Task id to the name of its directory under `rollouts/`.

    Characters other than letters, digits, `-`, `_` and `.` become `_`. Where that does not tell two tasks apart, or
    is no name for a directory, a hash of the id follows.
    """
    safe = {task_id: re.sub(r"[^A-Za-z0-9_.-]", "_", task_id) for task_id in task_ids}
    shared = Counter(name.casefold() for name in safe.values())
    names = {}
    for task_id, name in safe.items():
        if shared[name.casefold()] > 1 or len(name) > LONGEST_NAME or not name.strip("."):
            name = f"{name[-LONGEST_NAME:]}-{hashlib.sha256(task_id.encode()).hexdigest()[:12]}"
        names[task_id] = name
    return names
