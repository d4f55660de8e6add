"""The group table as one file: every row and member, counts in CSV, and the run's line only."""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from platoon.cli.app import run
from platoon.stats.export import NoStatistics
from platoon.stats.export_groups import export_groups
from platoon.stats.jsonl import append_row
from platoon.stats.schema import EntryInfo, GroupRecord
from platoon.stats.snapshot import write_snapshot
from platoon.stats.store import TaskStatsStore
from platoon.stats.tables import GroupsTable, read_table, records
from tests.stats.groups import failed, group, groups, scored


def write(run_dir: Path, found: Sequence[GroupRecord], start: int = 1) -> list[str]:
    """The groups in two parts, each a flush."""
    table = GroupsTable(run_dir, start)
    for index, record in enumerate(found):
        table.append(record, index)
        if index == len(found) // 2:
            table.flush()
    table.flush()
    return table.parts()


def checkpoint(run_dir: Path, parts: list[str], start: int = 1) -> None:
    """A checkpoint whose statistics know task `a` of entry `easy`, which passes from 0.5, and entry `hard`."""
    entries = {"easy": EntryInfo(2, success_threshold=0.5), "hard": EntryInfo(2, success_threshold=0.9)}
    store = TaskStatsStore([("a", "easy", None)], entries)
    record = write_snapshot(store, run_dir / "tasks" / f"state-s{start}-000001.parquet", start, 1)
    append_row(
        run_dir / "checkpoints.jsonl",
        {"name": "c", "policy_version": 1, "tasks": record, "parts": {"start": start, "groups": parts}},
    )


GROUPS = [
    group(0, "a", [scored(0.5), scored(0.25), failed()], entry="easy", labels={"level": "x", "kind": "y"}),
    group(1, "b", [scored(0.5), scored(0.95)], entry="hard", score=0.5),
    group(2, "b", [scored(0.95, flag=True), scored(1.0, flag=True)], entry="hard"),
    group(3, "c", [failed(), failed()], entry="gone"),
    group(4, "a", [scored(0.5), scored(math.nan)]),
    group(5, "c", [], entry="easy"),
]


def test_csv_has_counts_for_members(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    checkpoint(tmp_path, write(tmp_path, GROUPS))
    text = export_groups(tmp_path, "csv")
    assert text is not None
    rows = list(csv.DictReader(io.StringIO(text)))
    table = read_table(tmp_path, "groups")
    assert list(rows[0]) == [n for n in table.columns if n != "members"] + ["valid", "passes", "reward_mean"]
    assert [row["valid"] for row in rows] == ["2", "2", "2", "0", "2", "0"]
    assert [row["passes"] for row in rows] == ["1", "1", "1", "0", "1", "0"]
    assert [row["reward_mean"] for row in rows] == ["0.375", "0.725", "0.975", "", "NaN", ""]
    assert [row["labels"] for row in rows[:2]] == ["level=x;kind=y", ""]
    assert export_groups(tmp_path, "csv", tmp_path / "groups.csv") is None
    assert (tmp_path / "groups.csv").read_text() == text
    assert capsys.readouterr().err == ""


def finite(value: Any) -> Any:
    """JSON has no infinity: it is null there."""
    if isinstance(value, dict):
        return {key: finite(item) for key, item in value.items()}
    if isinstance(value, list):
        return [finite(item) for item in value]
    return None if isinstance(value, float) and math.isinf(value) else value


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(groups, min_size=1, max_size=4))
def test_every_format_holds_the_groups(tmp_path_factory: pytest.TempPathFactory, found: list[GroupRecord]) -> None:
    run_dir = tmp_path_factory.mktemp("run")
    checkpoint(run_dir, write(run_dir, found))
    export_groups(run_dir, "parquet", run_dir / "out" / "g.parquet")
    assert records(pl.read_parquet(run_dir / "out" / "g.parquet")) == list(enumerate(found))
    table = read_table(run_dir, "groups")
    lines = [json.loads(line) for line in (export_groups(run_dir, "jsonl") or "").rstrip("\n").split("\n")]
    assert lines == [finite(row) for row in table.to_dicts()]
    thresholds = {"easy": 0.5, "hard": 0.9}
    rows = pl.read_csv(io.StringIO(export_groups(run_dir, "csv") or ""), infer_schema=False).to_dicts()
    for row, record in zip(rows, found, strict=True):
        limit = 0.5 if record.task_id == "a" else thresholds.get(record.entry or "", 1.0)
        assert int(row["passes"]) == record.passes(limit)
        assert int(row["valid"]) == record.valid


def test_rows_of_an_abandoned_line_are_left_out(tmp_path: Path) -> None:
    parts = write(tmp_path, GROUPS[:2])
    checkpoint(tmp_path, parts)
    table = GroupsTable(tmp_path, 1 + 1)
    table.append(GROUPS[2], 2)
    table.flush()  # start 2 dies before its checkpoint
    checkpoint(tmp_path, write(tmp_path, GROUPS[3:], start=3), start=3)
    export_groups(tmp_path, "parquet", tmp_path / "g.parquet")
    assert pl.read_parquet(tmp_path / "g.parquet")["seq"].to_list() == [0, 1, 3, 4, 5]


def test_before_the_first_checkpoint_passes_are_unknown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(tmp_path, GROUPS[:1])
    (row,) = csv.DictReader(io.StringIO(export_groups(tmp_path, "csv") or ""))
    assert (row["valid"], row["passes"], row["reward_mean"]) == ("2", "", "0.375")
    assert "`passes` stays empty" in capsys.readouterr().err


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(NoStatistics, match="no group has settled"):
        export_groups(tmp_path, "csv")
    assert run(["tasks", "export", str(tmp_path), "--groups"]) == 1
    assert run(["tasks", "export", str(tmp_path), "--groups", "--format", "parquet"]) == 64
    parts = write(tmp_path, GROUPS)
    checkpoint(tmp_path, parts)
    out = tmp_path / "g.jsonl"
    assert run(["tasks", "export", str(tmp_path), "--groups", "--format", "jsonl", "-o", str(out)]) == 0
    assert [len(json.loads(line)["members"]) for line in out.read_text().splitlines()] == [3, 2, 2, 2, 2, 0]
    capsys.readouterr()
    (tmp_path / "tasks" / "groups" / parts[0]).unlink()
    assert run(["tasks", "export", str(tmp_path), "--groups"]) == 1
    assert parts[0] in capsys.readouterr().err
