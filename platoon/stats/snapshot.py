"""Snapshots of the task statistics: one Parquet row a task, everything else as JSON in the file's metadata.

Reads ours and the JSON files of platoon 0.3 and 0.4; writes only ours. Floats are stored bit for bit.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from platoon.stats.files import sha256, write_atomic
from platoon.stats.schema import FATES
from platoon.stats.store import TaskStatsStore
from platoon.stats.totals import KINDS, MEANS, GroupSummary

FILE_FORMAT = 2
_HEADER = b"platoon.snapshot"
_COUNTS = ("groups", "reported", "attempts", "passes", "uniform_streak", "no_evidence_streak", "drawn", "outstanding")
_HISTORY = pa.list_(
    pa.struct(
        [
            ("start", pa.int32()),
            ("seq", pa.int64()),
            ("version", pa.int64()),
            ("valid", pa.int32()),
            ("passes", pa.int32()),
            ("reward_mean", pa.float64()),
            ("verdict", pa.string()),
            ("steps", pa.float64()),
            ("seconds", pa.float64()),
        ]
    )
)


class SnapshotError(ValueError):
    """A snapshot that cannot be read: missing, changed since it was written, or of an unknown format."""


def _schema() -> pa.Schema:
    columns: list[tuple[str, pa.DataType]] = [
        ("start", pa.int32()),
        ("policy", pa.string()),
        ("task_id", pa.string()),
        ("entry", pa.string()),
        ("label", pa.string()),
        *((name, pa.int64()) for name in _COUNTS),
        ("reward_sum", pa.float64()),
        *((f"{kind}_groups", pa.int64()) for kind in KINDS),
        *_decayed_columns("evidence", ("passes", "fails")),
    ]
    for name in MEANS:
        columns += _decayed_columns(name, ("total", "weight"))
    columns += [*((f"fate_{fate}", pa.int64()) for fate in FATES), ("history", _HISTORY)]
    return pa.schema(columns)


def _decayed_columns(name: str, parts: tuple[str, str]) -> list[tuple[str, pa.DataType]]:
    return [*((f"{name}_{part}", pa.float64()) for part in parts), (f"{name}_version", pa.int64())]


SCHEMA = _schema()


def write_snapshot(state: TaskStatsStore | Mapping[str, Any], path: Path, start: int, next_seq: int) -> dict[str, Any]:
    """Write `tasks/state-s<start>-<checkpoint>.parquet`; returns the record for the checkpoint's row.

    Give `store.snapshot(...)` instead of the store to write it in a thread. OSError when the disk refuses.
    """
    data = state.snapshot(start=start, next_seq=next_seq) if isinstance(state, TaskStatsStore) else dict(state)
    header = {key: value for key, value in data.items() if key != "tasks"}
    table = pa.Table.from_pydict(_columns(start, data["tasks"]), schema=SCHEMA).replace_schema_metadata(
        {
            b"platoon.table": b"tasks",
            b"platoon.version": b"1",
            _HEADER: json.dumps(header, allow_nan=False).encode(),
        }
    )
    write_atomic(path, lambda partial: pq.write_table(table, partial, compression="zstd"))
    return {"file": f"tasks/{path.name}", "sha256": sha256(path), "format": FILE_FORMAT, "start": start}


def read_snapshot(path: Path, digest: str | None = None) -> dict[str, Any]:
    """The plain values that `TaskStatsStore.load` takes. SnapshotError when it does not read back."""
    try:
        if digest is not None and sha256(path) != digest:
            raise SnapshotError(f"{path} changed after it was written: its SHA-256 is not the recorded one")
        data = _read_json(path) if path.suffix == ".json" else _read_parquet(path)
    except OSError as error:
        raise SnapshotError(f"{path} cannot be read: {error}") from error
    except (pa.ArrowInvalid, KeyError, TypeError) as error:
        raise SnapshotError(f"{path} is not a snapshot of task statistics: {error}") from error
    if data.get("format") != 1:
        raise SnapshotError(f"{path} has format {data.get('format')!r}; this platoon reads 1")
    return data


def read_recorded(run_dir: Path, row: Mapping[str, Any]) -> dict[str, Any] | None:
    """The snapshot that a checkpoint's row names; None when it names none. SnapshotError when it does not read back."""
    record = row.get("tasks")
    if not isinstance(record, Mapping):
        return None
    name, digest = record.get("file"), record.get("sha256")
    if not isinstance(name, str) or not isinstance(digest, str):
        raise SnapshotError(f"checkpoint {row.get('name')!r} names no file and SHA-256 for its task statistics")
    return read_snapshot(run_dir / name, digest)


def _read_json(path: Path) -> dict[str, Any]:
    try:
        data = json.loads(path.read_bytes())
    except ValueError as error:
        raise SnapshotError(f"{path} is not JSON: {error}") from error
    if not isinstance(data, dict):
        raise SnapshotError(f"{path} holds no JSON object")
    return data


def _read_parquet(path: Path) -> dict[str, Any]:
    table = pq.read_table(path)
    header: dict[str, Any] = json.loads((table.schema.metadata or {})[_HEADER])
    outstanding = header.pop("outstanding")
    return {**header, "tasks": {row["task_id"]: _task(row) for row in table.to_pylist()}, "outstanding": outstanding}


def _columns(start: int, tasks: Mapping[str, Mapping[str, Any]]) -> dict[str, list[Any]]:
    """The table's columns, one value a task."""
    found = list(tasks.values())
    columns: dict[str, list[Any]] = {
        "start": [start] * len(found),
        "policy": ["main"] * len(found),
        "task_id": list(tasks),
    }
    for name in ("entry", "label", *_COUNTS, "reward_sum"):
        columns[name] = [task[name] for task in found]
    for kind in KINDS:
        columns[f"{kind}_groups"] = [task["kinds"].get(kind, 0) for task in found]
    for index, part in enumerate(("passes", "fails", "version")):
        columns[f"evidence_{part}"] = [task["evidence"][index] for task in found]
    for name in MEANS:
        for index, part in enumerate(("total", "weight", "version")):
            columns[f"{name}_{part}"] = [task["metrics"].get(name, (0.0, 0.0, None))[index] for task in found]
    for fate in FATES:
        columns[f"fate_{fate}"] = [task["fates"].get(fate, 0) for task in found]
    columns["history"] = [
        [dict(zip(GroupSummary._fields, summary, strict=True)) for summary in task["history"]] for task in found
    ]
    return columns


def _task(row: Mapping[str, Any]) -> dict[str, Any]:
    """The row's task, in the form of `TaskStatsStore.snapshot`."""
    return {
        "entry": row["entry"],
        "label": row["label"],
        **{name: row[name] for name in (*_COUNTS, "reward_sum")},
        "kinds": {kind: row[f"{kind}_groups"] for kind in sorted(KINDS) if row[f"{kind}_groups"]},
        "evidence": [row["evidence_passes"], row["evidence_fails"], row["evidence_version"]],
        "metrics": {name: [row[f"{name}_{part}"] for part in ("total", "weight", "version")] for name in MEANS},
        "fates": {fate: row[f"fate_{fate}"] for fate in sorted(FATES) if row[f"fate_{fate}"]},
        "history": [[summary[name] for name in GroupSummary._fields] for summary in row["history"]],
    }
