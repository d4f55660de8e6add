"""`platoon tasks show` and `export`: a run's task statistics as text, CSV, JSON lines or Parquet.

Reads `checkpoints.jsonl` and the newest snapshot it names that reads back, ours or platoon 0.4's; works while the run
trains. Each newer snapshot that is passed over is named on stderr.
"""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

import polars as pl

from platoon.config.problems import ConfigError
from platoon.stats.files import write_atomic
from platoon.stats.jsonl import read_jsonl
from platoon.stats.passk import informative_at, pass_at
from platoon.stats.schema import FATES
from platoon.stats.snapshot import SnapshotError, read_recorded
from platoon.stats.store import TaskStatsStore
from platoon.stats.totals import TaskStats

Sort = Literal["informative", "pass_rate", "groups"]
Format = Literal["csv", "jsonl", "parquet"]
COLUMNS: dict[str, Any] = {
    "task_id": pl.String,
    "entry": pl.String,
    "label": pl.String,
    "groups": pl.Int64,
    "reported_groups": pl.Int64,
    "attempts": pl.Int64,
    "passes": pl.Int64,
    "informative_groups": pl.Int64,
    "all_pass_groups": pl.Int64,
    "all_fail_groups": pl.Int64,
    "uniform_mixed_groups": pl.Int64,
    "uniform_streak": pl.Int64,
    "no_evidence_streak": pl.Int64,
    "drawn": pl.Int64,
    "outstanding": pl.Int64,
    **{f"fate_{fate}": pl.Int64 for fate in FATES},
    "group_size": pl.Int64,
    "pass_rate": pl.Float64,
    "pass_at_G": pl.Float64,
    "informative_at_G": pl.Float64,
    "newest_version": pl.Int64,
}
_HEADER = ("task", "groups", "pass/att", "E[p]", "E[pass@G]", "E[inf]", "newest v", "out", "/".join(FATES))


class NoStatistics(FileNotFoundError):
    """The run directory has no statistics that read back."""


@dataclass(frozen=True)
class RunStatistics:
    """Statistics as of one checkpoint. `version`: policy version then. `notes`: newer snapshots passed over."""

    checkpoint: str
    version: int
    store: TaskStatsStore
    notes: tuple[str, ...] = ()


def read_statistics(run_dir: Path) -> RunStatistics:
    """The newest statistics of a run. NoStatistics names what is missing."""
    path = run_dir / "checkpoints.jsonl"
    if not path.is_file():
        raise NoStatistics(f"{run_dir} has no checkpoints.jsonl: give the run directory of a training run")
    read = read_jsonl(path)
    notes = list(read.problems)
    for row in reversed(read.rows):
        try:
            data = read_recorded(run_dir, row)
            store = TaskStatsStore.from_snapshot(data) if data is not None else None
        except (SnapshotError, KeyError, TypeError) as error:
            notes.append(f"checkpoint {row.get('name')}: {error}")
            continue
        if store is not None:
            return RunStatistics(str(row.get("name")), _version(row), store, tuple(notes))
    reasons = "".join(f"\n  {note}" for note in notes)
    raise NoStatistics(f"{run_dir}: no checkpoint has task statistics that read back{reasons}")


def task_rows(found: RunStatistics) -> list[dict[str, Any]]:
    """One row a task, in pool order, with the columns of `COLUMNS`."""
    return [_task_row(found, found.store.task(task_id)) for task_id in found.store.task_ids()]


def show(run_dir: Path, label: str | None = None, sort: Sort = "informative", top: int | None = None) -> str:
    """The header line and the table of tasks with a settled group. NoStatistics when there are none to read,
    ConfigError for a label that no task has."""
    if sort not in get_args(Sort):
        raise ValueError(f"sort {sort!r}: one of {', '.join(get_args(Sort))}")
    found = read_statistics(run_dir)
    _warn(found.notes)
    rows = task_rows(found)
    if label is not None:
        labels = sorted({row["label"] for row in rows} - {None})
        if label not in labels:
            there = f"its labels are {', '.join(labels)}" if labels else "its tasks have no labels"
            raise ConfigError(f"--label {label}: no task of {run_dir} has it; {there}")
        rows = [row for row in rows if row["label"] == label]
    seen = sorted((row for row in rows if row["groups"]), key=lambda row: _sort_key(row, sort))
    which = "tasks" if label is None else f"tasks of label {label}"
    header = (
        f"{run_dir}: checkpoint {found.checkpoint}, policy version {found.version}, "
        f"{len(seen)} of {len(rows)} {which} with a settled group"
    )
    shown = seen if top is None else seen[: max(top, 0)]
    return "\n".join([header, *(_layout([_HEADER, *map(_cells, shown)]) if shown else [])])


def export(run_dir: Path, format: Format = "csv", out: Path | None = None) -> str | None:
    """Write every task of the run to `out`, or give the text back. NoStatistics when there are none to read.

    ValueError for Parquet without a file, and for an unknown format.
    """
    check_form(format, out)
    found = read_statistics(run_dir)
    _warn(found.notes)
    rows = task_rows(found)
    if format == "jsonl":
        content = "".join(json.dumps(row) + "\n" for row in rows).encode()
    else:
        frame, buffer = pl.DataFrame(rows, schema=COLUMNS), io.BytesIO()
        if format == "csv":
            frame.write_csv(buffer)
        else:
            frame.write_parquet(buffer, compression="zstd")
        content = buffer.getvalue()
    if out is None:
        return content.decode()
    write_atomic(out, content)
    return None


def check_form(format: str, out: Path | None) -> None:
    """ValueError for an unknown format, and for Parquet without a file."""
    if format not in get_args(Format):
        raise ValueError(f"format {format!r}: one of {', '.join(get_args(Format))}")
    if format == "parquet" and out is None:
        raise ValueError("parquet is binary: name a file with -o FILE")


def _version(row: Mapping[str, Any]) -> int:
    for key in ("policy_version", "batch"):
        if isinstance(row.get(key), int):
            return int(row[key])
    return 0


def _task_row(found: RunStatistics, task: TaskStats) -> dict[str, Any]:
    alpha, beta = found.store.posterior(task.task_id, now=found.version)
    size = found.store.group_size(task.entry)
    counts = {name: getattr(task, name) for name in COLUMNS if hasattr(task, name)}
    return {
        **counts,
        **{f"fate_{fate}": task.fates[fate] for fate in FATES},
        "group_size": size,
        "pass_rate": alpha / (alpha + beta),
        "pass_at_G": pass_at(alpha, beta, size),
        "informative_at_G": informative_at(alpha, beta, size),
        "newest_version": max((s.version for s in task.history if s.version is not None), default=None),
    }


def _sort_key(row: Mapping[str, Any], sort: Sort) -> tuple[float, str]:
    value = {"informative": -row["informative_at_G"], "pass_rate": row["pass_rate"], "groups": -row["groups"]}[sort]
    return value, row["task_id"]


def _cells(row: Mapping[str, Any]) -> tuple[str, ...]:
    newest = row["newest_version"]
    return (
        row["task_id"],
        str(row["groups"]),
        f"{row['passes']}/{row['attempts']}",
        f"{row['pass_rate']:.2f}",
        f"{row['pass_at_G']:.2f}",
        f"{row['informative_at_G']:.2f}",
        "" if newest is None else str(newest),
        str(row["outstanding"]),
        "/".join(str(row[f"fate_{fate}"]) for fate in FATES),
    )


def _layout(table: Sequence[Sequence[str]]) -> list[str]:
    """Two spaces between columns; the first to the left, the others to the right."""
    widths = [max(len(cell) for cell in column) for column in zip(*table, strict=True)]
    return [
        "  ".join(
            [row[0].ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True))]
        )
        for row in table
    ]


def _warn(notes: Sequence[str]) -> None:
    for note in notes:
        print(f"platoon: {note}", file=sys.stderr)
