"""Groups that settled but no committed step consumed, kept with a checkpoint so that nothing is rolled out twice.

One Parquet file a checkpoint: one row a datum, exact to the bit; a group's own data on its first row. Also reads the
`.json.gz` files of platoon 0.4.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from platoon.credit import Datum, GroupOutput
from platoon.stats.files import sha256, write_atomic
from platoon.stats.schema import GroupRecord, record_from_json, record_to_json
from platoon.train import dispatch
from platoon.train.dispatch import Settled
from platoon.train.kept_columns import FIELDS, PLAIN, columns, datums
from platoon.train.kept_json import legacy_groups, legacy_output, output_from_json, output_to_json
from platoon.train.recorded_groups import group_record

FILE_FORMAT = 2
_GROUP = [
    ("start", pa.int32()),
    ("seq", pa.int64()),
    ("first", pa.bool_()),
    ("entry", pa.string()),
    ("label", pa.string()),
    ("record", pa.string()),
    ("output", pa.string()),
    ("error", pa.string()),
    ("seconds", pa.float64()),
]
SCHEMA = pa.schema([*_GROUP, *FIELDS])


class KeptError(ValueError):
    """A file of kept groups that does not read back; its draws are made again."""


@dataclass(frozen=True)
class KeptGroup:
    """A settled group under its draw's key `(start, seq)`. `output` is None for a failed group; `error` says why."""

    key: tuple[int, int]
    output: GroupOutput | None
    record: GroupRecord | None = None
    entry: str | None = None
    label: str | None = None
    error: str | None = None
    seconds: float = 0.0


def kept_group(settled: Settled[GroupOutput], column: str) -> KeptGroup:
    """What a checkpoint keeps of a group that the driver holds. `column`: the label column of the run."""
    draw = settled.draw
    record = group_record(settled, column)
    return KeptGroup(draw.key, settled.output, record, draw.entry, draw.label, settled.error, settled.seconds)


def handed_back(kept: KeptGroup) -> dispatch.KeptGroup[GroupOutput]:
    """The kept group as the driver takes it back on a resume."""
    record = kept.record
    error = kept.error if kept.output is not None else kept.error or "the group failed before the last checkpoint"
    if record is None:
        return dispatch.KeptGroup(kept.key, kept.output, error, kept.seconds)
    return dispatch.KeptGroup(
        key=kept.key,
        output=kept.output,
        error=error,
        seconds=kept.seconds,
        version=record.drawn_at.get("main", 0),
        reason=record.reason,
        score=record.score,
    )


def write_kept(path: Path, groups: Sequence[KeptGroup]) -> dict[str, Any]:
    """Write the groups in order; returns the record for the dispatcher's state.

    Groups are read-only, so this may run in a thread while training goes on. OSError when the disk refuses.
    """
    rows: list[dict[str, Any]] = []
    flat: list[Datum | None] = []
    for group in groups:
        found = group.output.datums if group.output is not None else []
        flat += found or [None]
        rows.append(_group_row(group))
        rows += [{"start": group.key[0], "seq": group.key[1], "first": False}] * (len(found) - 1)
    arrays = {name: pa.array([row.get(name) for row in rows], kind) for name, kind in _GROUP} | columns(flat)
    metadata = {b"platoon.table": b"kept", b"platoon.version": str(FILE_FORMAT).encode()}
    table = pa.Table.from_pydict(arrays, schema=SCHEMA).replace_schema_metadata(metadata)
    leaves = [f"{field.name}.list.element" if pa.types.is_list(field.type) else field.name for field in SCHEMA]
    plain = [f"{name}.list.element" for name in PLAIN]

    def write(partial: Path) -> None:
        pq.write_table(
            table,
            partial,
            compression="zstd",
            use_dictionary=[leaf for leaf in leaves if leaf not in plain],
            use_byte_stream_split=plain,
        )

    write_atomic(path, write)
    keys = [list(group.key) for group in groups]
    return {"file": f"tasks/{path.name}", "sha256": sha256(path), "format": FILE_FORMAT, "groups": keys}


def read_kept(path: Path, digest: str | None = None) -> list[KeptGroup]:
    """Read the groups back, in order. KeptError when the file is missing, changed, or none of ours or platoon 0.4's."""
    try:
        if digest is not None and sha256(path) != digest:
            raise KeptError(f"{path} changed after it was written: its SHA-256 is not the recorded one")
        if path.name.endswith(".json.gz"):
            return [_legacy_group(group) for group in legacy_groups(path)]
        return _read_parquet(path)
    except OSError as error:
        raise KeptError(f"{path} cannot be read: {error}") from error
    except KeptError:
        raise
    except (ValueError, KeyError, TypeError, EOFError, zlib.error) as error:
        raise KeptError(f"{path} is not a file of kept groups: {error}") from error


def _read_parquet(path: Path) -> list[KeptGroup]:
    table = pq.read_table(path)
    version = (table.schema.metadata or {}).get(b"platoon.version", b"").decode()
    if version != str(FILE_FORMAT):
        raise KeptError(f"{path} has format {version or 'none'}; this platoon reads {FILE_FORMAT}")
    rows = table.select([name for name, _ in _GROUP]).to_pylist()
    found: list[tuple[dict[str, Any], list[Datum]]] = []
    for row, datum in zip(rows, datums(table), strict=True):
        if row["first"]:
            found.append((row, []))
        if datum is not None:
            found[-1][1].append(datum)
    return [_group(row, kept) for row, kept in found]


def _group_row(group: KeptGroup) -> dict[str, Any]:
    return {
        "start": group.key[0],
        "seq": group.key[1],
        "first": True,
        "entry": group.entry,
        "label": group.label,
        "record": None if group.record is None else json.dumps(record_to_json(group.record)),
        "output": None if group.output is None else output_to_json(group.output),
        "error": group.error,
        "seconds": group.seconds,
    }


def _group(row: Mapping[str, Any], kept: list[Datum]) -> KeptGroup:
    return KeptGroup(
        key=(row["start"], row["seq"]),
        output=None if row["output"] is None else output_from_json(row["output"], kept),
        record=None if row["record"] is None else record_from_json(json.loads(row["record"])),
        entry=row["entry"],
        label=row["label"],
        error=row["error"],
        seconds=row["seconds"],
    )


def _legacy_group(data: Mapping[str, Any]) -> KeptGroup:
    start, seq = data["key"]
    return KeptGroup(
        key=(int(start), int(seq)),
        output=legacy_output(data["output"]),
        record=None if data["record"] is None else record_from_json(data["record"]),
        entry=data["entry"],
        label=data["label"],
    )
