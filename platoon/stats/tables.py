"""The run's tables: settled groups, step metrics, token usage.

One writer a table and start, one reader for all. Floats are stored as they are, bit for bit. The `policy` column holds
`main` until several policies train in one run.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal, TypeVar

import polars as pl
import pyarrow as pa

from platoon.stats.parts import PartWriter, TableFormat, line_parts
from platoon.stats.schema import GroupRecord, MemberResult

_READS = 100
T = TypeVar("T")
TableName = Literal["groups", "metrics", "usage"]

_VERSIONS = pa.list_(pa.struct([("policy", pa.string()), ("oldest", pa.int64()), ("newest", pa.int64())]))
_MEMBER = pa.struct(
    [
        ("reward", pa.float64()),
        ("scored", pa.float64()),
        ("valid", pa.bool_()),
        ("outcome", pa.string()),
        ("disposition", pa.string()),
        ("reward_key", pa.string()),
        ("steps", pa.int64()),
        ("output_tokens", pa.int64()),
        ("seconds", pa.float64()),
        ("versions", _VERSIONS),
        ("flag", pa.bool_()),
    ]
)
GROUPS = TableFormat(
    "groups",
    "tasks/groups",
    1,
    pa.schema(
        [
            ("start", pa.int32()),
            ("seq", pa.int64()),
            ("intake", pa.int64()),
            ("task_id", pa.string()),
            ("entry", pa.string()),
            ("labels", pa.list_(pa.struct([("column", pa.string()), ("label", pa.string())]))),
            ("harness", pa.string()),
            ("group_size", pa.int32()),
            ("sampler", pa.string()),
            ("reason", pa.string()),
            ("score", pa.float64()),
            ("position", pa.int64()),
            ("policy", pa.string()),
            ("drawn_at", pa.int64()),
            ("members", pa.list_(_MEMBER)),
            ("verdict", pa.string()),
        ]
    ),
)
METRICS = TableFormat(
    "metrics",
    "metrics",
    1,
    pa.schema([("start", pa.int32()), ("step", pa.int64()), ("key", pa.string()), ("value", pa.float64())]),
)
USAGE = TableFormat(
    "usage",
    "usage",
    1,
    pa.schema(
        [
            ("start", pa.int32()),
            ("seq", pa.int64()),
            ("member", pa.int32()),
            ("rollout_id", pa.string()),
            ("task_id", pa.string()),
            ("entry", pa.string()),
            ("phase", pa.string()),
            ("policy", pa.string()),
            ("model", pa.string()),
            ("kind", pa.string()),
            ("calls", pa.int64()),
            ("input_tokens", pa.int64()),
            ("output_tokens", pa.int64()),
            ("seconds", pa.float64()),
            ("cost", pa.float64()),
        ]
    ),
)
FORMATS: Mapping[str, TableFormat] = {table.name: table for table in (GROUPS, METRICS, USAGE)}


class GroupsTable(PartWriter):
    """`tasks/groups`: one row a settled group, in the order statistics took them in."""

    def __init__(self, run_dir: Path, start: int) -> None:
        super().__init__(run_dir, start, GROUPS)

    def append(self, record: GroupRecord, intake: int) -> None:
        """`intake`: the group's index in that order, from 0, over the run's whole line."""
        policy, drawn_at = next(iter(record.drawn_at.items()), ("main", None))
        self.add(
            {
                "start": record.start,
                "seq": record.seq,
                "intake": intake,
                "task_id": record.task_id,
                "entry": record.entry,
                "labels": [{"column": column, "label": label} for column, label in record.labels.items()],
                "harness": record.harness,
                "group_size": record.group_size,
                "sampler": record.sampler,
                "reason": record.reason,
                "score": record.score,
                "position": record.position,
                "policy": policy,
                "drawn_at": drawn_at,
                "members": [_member_row(member) for member in record.members],
                "verdict": record.verdict,
            }
        )


class MetricsTable(PartWriter):
    """`metrics`: one row a metric of a step, in long form."""

    def __init__(self, run_dir: Path, start: int) -> None:
        super().__init__(run_dir, start, METRICS)
        self._start_number = start

    def append(self, step: int, metrics: Mapping[str, float]) -> None:
        """Add every metric of one step."""
        for key, value in metrics.items():
            self.add({"start": self._start_number, "step": step, "key": key, "value": float(value)})


@dataclass(frozen=True)
class Usage:
    """Tokens of one rollout's calls of one kind. `cost` is None where no price is known, `seq` in evaluations."""

    seq: int | None
    member: int
    rollout_id: str
    task_id: str
    entry: str | None
    kind: str
    calls: int
    input_tokens: int
    output_tokens: int
    seconds: float | None = None
    cost: float | None = None
    model: str | None = None
    phase: Literal["train", "eval"] = "train"
    policy: str = "main"


class UsageTable(PartWriter):
    """`usage`: one row a rollout and call kind."""

    def __init__(self, run_dir: Path, start: int) -> None:
        super().__init__(run_dir, start, USAGE)
        self._start_number = start

    def append(self, usage: Usage) -> None:
        self.add({"start": self._start_number, **asdict(usage)})


def read_table(run_dir: Path, name: TableName) -> pl.DataFrame:
    """The table of the run's line, oldest row first, empty when nothing was written.

    Rows that a start wrote after the checkpoint that the next start resumed from are left out. ValueError for an
    unknown table, a missing part or a newer format.
    """
    return with_table(run_dir, name, pl.LazyFrame.collect)


def with_table(run_dir: Path, name: TableName, use: Callable[[pl.LazyFrame], T]) -> T:
    """What `use` makes of the table that `read_table` gives, without holding it in memory.

    `use` is called again when the run joined parts meanwhile.
    """
    if name not in FORMATS:
        raise ValueError(f"no table {name!r}: platoon keeps {', '.join(FORMATS)}")
    table = FORMATS[name]
    empty = pl.DataFrame(pl.from_arrow(table.schema.empty_table())).lazy()
    for _ in range(_READS):
        try:
            parts = [pl.scan_parquet(path, glob=False) for path in line_parts(run_dir, table)]
            return use(pl.concat([empty, *parts], how="diagonal_relaxed"))
        except FileNotFoundError:
            continue  # the run has just joined parts into one
    raise ValueError(f"{run_dir / table.directory} kept changing while it was read; try again")


def records(groups: pl.DataFrame) -> list[tuple[int, GroupRecord]]:
    """The rows of the groups table as (intake, record)."""
    return [(row["intake"], _record(row)) for row in groups.iter_rows(named=True)]


def _member_row(member: MemberResult) -> dict[str, object]:
    versions = [{"policy": policy, "oldest": low, "newest": high} for policy, (low, high) in member.versions.items()]
    return {**asdict(member), "versions": versions}


def _record(row: dict[str, object]) -> GroupRecord:
    plain = {key: value for key, value in row.items() if key not in ("intake", "policy")}
    members, labels = row["members"], row["labels"]
    assert isinstance(members, list)
    assert isinstance(labels, list)
    plain["labels"] = {pair["column"]: pair["label"] for pair in labels}
    plain["drawn_at"] = {} if row["drawn_at"] is None else {str(row["policy"]): row["drawn_at"]}
    plain["members"] = tuple(
        MemberResult(**{**m, "versions": {v["policy"]: (v["oldest"], v["newest"]) for v in m["versions"]}})
        for m in members
    )
    return GroupRecord(**plain)  # type: ignore[arg-type]
