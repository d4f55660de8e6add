"""Append-only Parquet tables in numbered parts, and which parts belong to the run's line.

A start writes `part-s<start>-<number>.parquet`. `cut` closes what a checkpoint holds and names its parts for the
checkpoint's row; the reader keeps parts that some row names, and those of the newest start. So what a start wrote after
the checkpoint that the next start resumed from is dropped, without rewriting any file.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from platoon.stats.files import write_atomic
from platoon.stats.jsonl import read_jsonl

_PART = re.compile(r"part-s(\d+)-(\d+)\.parquet")
_REPLACES = b"platoon.replaces"


@dataclass(frozen=True)
class TableFormat:
    """A table's name, its directory under the run directory, its columns and the version of both."""

    name: str
    directory: str
    version: int
    schema: pa.Schema

    def metadata(self, replaces: list[str]) -> dict[bytes, bytes]:
        found = {b"platoon.table": self.name.encode(), b"platoon.version": str(self.version).encode()}
        return found | ({_REPLACES: json.dumps(replaces).encode()} if replaces else {})


class PartWriter:
    """Collects one start's rows. For one thread of one process: the run directory has one owner."""

    def __init__(self, run_dir: Path, start: int, table: TableFormat) -> None:
        """Removes parts under this start number: their process died before it recorded the start."""
        self.table = table
        self._directory = run_dir / table.directory
        self._start = start
        self._rows: list[dict[str, Any]] = []
        self._open: list[str] = []
        self._cut: list[str] = []
        self._next = 1
        for path in self._directory.glob(f"part-s{start}-*.parquet"):
            path.unlink()

    def add(self, row: Mapping[str, Any]) -> None:
        """Hold one row in memory until the next flush."""
        self._rows.append(dict(row))

    def flush(self) -> Path | None:
        """Write what is held as a part; None when nothing is. OSError leaves the rows held."""
        if not self._rows:
            return None
        path = self._write(self._held(), [])
        self._rows.clear()
        self._open.append(path.name)
        return path

    def cut(self) -> list[str]:
        """Close the parts that a checkpoint holds, as one part, and name all that no row has confirmed yet."""
        merged = list(self._open)
        if merged and (len(merged) > 1 or self._rows):
            tables = [pq.read_table(self._directory / name, schema=self.table.schema) for name in merged]
            path = self._write(pa.concat_tables([*tables, self._held()]), merged)
            self._rows.clear()
            self._open = [path.name]
            for name in merged:
                (self._directory / name).unlink()
        else:
            self.flush()
        self._cut += self._open
        self._open = []
        return list(self._cut)

    def confirm(self, names: list[str]) -> None:
        """A checkpoint's row with these parts is on the disk: later rows need not repeat them."""
        self._cut = [name for name in self._cut if name not in names]

    def parts(self) -> list[str]:
        """This start's parts that no row has confirmed, oldest first."""
        return [*self._cut, *self._open]

    def _held(self) -> pa.Table:
        return pa.Table.from_pylist(self._rows, schema=self.table.schema)

    def _write(self, rows: pa.Table, replaces: list[str]) -> Path:
        path = self._directory / f"part-s{self._start}-{self._next:06d}.parquet"
        rows = rows.replace_schema_metadata(self.table.metadata(replaces))
        write_atomic(path, lambda partial: pq.write_table(rows, partial, compression="zstd"))
        self._next += 1
        return path


def line_parts(run_dir: Path, table: TableFormat) -> list[Path]:
    """Parts of the run's line, oldest first. ValueError when a checkpoint names one that is missing."""
    directory = run_dir / table.directory
    listed, newest = _listed(run_dir, table.name)  # before the directory: a row's parts are there when it is
    files = directory.iterdir() if directory.is_dir() else ()
    found = {path.name: (numbers, path) for path in files if (numbers := _numbers(path))}
    for name in sorted(listed - found.keys()):
        raise ValueError(f"{run_dir}/checkpoints.jsonl names {table.directory}/{name}, which is missing; restore it")
    kept = {name for name, (numbers, _) in found.items() if name in listed or numbers[0] >= newest}
    for name in list(kept):
        kept -= set(_check(found[name][1], table))
    return [path for _, path in sorted(found[name] for name in kept)]


def _listed(run_dir: Path, table: str) -> tuple[set[str], int]:
    """Part names in checkpoint rows, and the number of the newest start that made a checkpoint."""
    listed: set[str] = set()
    newest = 0
    for row in read_jsonl(run_dir / "checkpoints.jsonl").rows:
        parts = row.get("parts")
        if isinstance(parts, dict):
            listed.update(parts.get(table, ()))
        newest = max([newest, *_starts(row)])
    return listed, newest


def _starts(row: Mapping[str, Any]) -> Iterator[int]:
    for holder in (row, row.get("tasks"), row.get("dispatch"), row.get("parts")):
        start = holder.get("start") if isinstance(holder, Mapping) else None
        if isinstance(start, int):
            yield start


def _check(path: Path, table: TableFormat) -> list[str]:
    """Names of the parts that this one replaces. ValueError when a newer platoon wrote it, or it is another table."""
    metadata = pq.read_schema(path).metadata or {}
    version = metadata.get(b"platoon.version", b"").decode()
    if metadata.get(b"platoon.table", b"").decode() != table.name or not version.isdigit():
        raise ValueError(f"{path} is not a part of platoon's table {table.name!r}; move it away")
    if int(version) > table.version:
        raise ValueError(f"{path} has format {version}, this platoon reads up to {table.version}; upgrade platoon")
    return [str(name) for name in json.loads(metadata.get(_REPLACES, b"[]"))]


def _numbers(path: Path) -> tuple[int, int] | None:
    """(start, number) of a part; None for any other file."""
    match = _PART.fullmatch(path.name)
    return (int(match[1]), int(match[2])) if match else None
