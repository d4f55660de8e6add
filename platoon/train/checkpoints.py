"""Checkpoint rows: `checkpoints.jsonl` names what a resume loads.

A row is appended only after the service confirmed the save, so a row that reads back is a checkpoint that exists.
Files under `tasks/` may exist without a row; they are then ignored.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from platoon.config import ConfigError
from platoon.stats.jsonl import append_row, read_jsonl

log = logging.getLogger("platoon.train")
FILE = "checkpoints.jsonl"


@dataclass(frozen=True)
class Checkpoint:
    """One full save. `batch` counts committed steps, so it is the next batch to train."""

    name: str
    batch: int
    state_path: str
    sampler_path: str
    policy_version: int
    optimizer_steps: int
    wandb_run_id: str | None = None
    tasks: Mapping[str, Any] | None = None
    dispatch: Mapping[str, Any] | None = None
    parts: Mapping[str, Any] | None = None
    extra: Mapping[str, Any] = field(default_factory=dict)

    def row(self) -> dict[str, Any]:
        out: dict[str, Any] = {
            "name": self.name,
            "batch": self.batch,
            "state_path": self.state_path,
            "sampler_path": self.sampler_path,
            "wandb_run_id": self.wandb_run_id,
            "policy_version": self.policy_version,
            "optimizer_steps": self.optimizer_steps,
        }
        for key in ("tasks", "dispatch", "parts"):
            value = getattr(self, key)
            if value is not None:
                out[key] = dict(value)
        return {**out, **self.extra}

    @classmethod
    def from_row(cls, row: Mapping[str, Any], num_minibatches: int) -> Checkpoint:
        """Read a row of ours or of platoon 0.2 to 0.4. ConfigError names the field that is not a count."""
        batch = _count(row, "batch", 0)
        known = {"name", "batch", "state_path", "sampler_path", "wandb_run_id", "policy_version", "optimizer_steps"}
        return cls(
            name=str(row.get("name", "")),
            batch=batch,
            state_path=str(row["state_path"]),
            sampler_path=str(row.get("sampler_path", "")),
            policy_version=_count(row, "policy_version", batch),
            optimizer_steps=_count(row, "optimizer_steps", batch * num_minibatches),
            wandb_run_id=row.get("wandb_run_id"),
            tasks=row.get("tasks"),
            dispatch=row.get("dispatch"),
            parts=row.get("parts"),
            extra={k: v for k, v in row.items() if k not in known | {"tasks", "dispatch", "parts"}},
        )


def _count(row: Mapping[str, Any], key: str, default: int) -> int:
    value = row.get(key, default)
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise ConfigError(
            f"{FILE}: checkpoint {row.get('name')!r}: {key} is {value!r}, not a count of 0 or more; correct the row, "
            "or remove it to go on from the checkpoint before it"
        )
    return value


def read_rows(run_dir: Path) -> list[dict[str, Any]]:
    """All readable rows, oldest first; [] when there is no file."""
    return read_jsonl(run_dir / FILE).rows


def warn_of_torn_rows(run_dir: Path) -> None:
    """Say which lines do not read: a resume ignores them."""
    for problem in read_jsonl(run_dir / FILE).problems:
        log.warning("%s; the checkpoint before it counts", problem)


def newest_resumable(run_dir: Path, num_minibatches: int) -> Checkpoint | None:
    """The newest row with a `state_path`, whatever its name."""
    for row in reversed(read_rows(run_dir)):
        if row.get("state_path"):
            return Checkpoint.from_row(row, num_minibatches)
    return None


def next_start(run_dir: Path) -> int:
    """The number of this process start: one more than any start a row knows of."""
    starts = [0]
    for row in read_rows(run_dir):
        for key in ("tasks", "dispatch", "parts"):
            record = row.get(key)
            if isinstance(record, Mapping) and isinstance(record.get("start"), int):
                starts.append(record["start"])
    return max(starts) + 1


def append(run_dir: Path, checkpoint: Checkpoint) -> None:
    """Append the row durably (fresh line, flush, fsync)."""
    append_row(run_dir / FILE, checkpoint.row())
