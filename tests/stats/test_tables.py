"""Tables: exact rows, parts named by checkpoints, and rows of an abandoned line dropped."""

from __future__ import annotations

import math
import struct
import threading
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from platoon.stats.jsonl import append_row
from platoon.stats.schema import GroupRecord
from platoon.stats.store import TaskStatsStore
from platoon.stats.tables import GroupsTable, MetricsTable, Usage, UsageTable, read_table, records
from tests.stats.groups import group, groups, scored


def steps(run_dir: Path) -> list[int]:
    return read_table(run_dir, "metrics")["step"].to_list()


def save(run_dir: Path, table: MetricsTable, start: int) -> None:
    names = table.cut()
    append_row(run_dir / "checkpoints.jsonl", {"name": "c", "parts": {"start": start, "metrics": names}})
    table.confirm(names)


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(groups, max_size=4))
def test_group_rows_read_back_as_they_were(tmp_path_factory: pytest.TempPathFactory, found: list[GroupRecord]) -> None:
    run_dir = tmp_path_factory.mktemp("run")
    table = GroupsTable(run_dir, 1)
    for index, record in enumerate(found):
        table.append(record, index)
    table.flush()
    assert records(read_table(run_dir, "groups")) == list(enumerate(found))


def test_floats_keep_every_bit(tmp_path: Path) -> None:
    values = [0.1 + 0.2, 5e-324, -0.0, math.inf, math.nan, 1 / 3]
    table = MetricsTable(tmp_path, 1)
    table.append(1, {f"k{i}": value for i, value in enumerate(values)})
    table.flush()
    read = read_table(tmp_path, "metrics")["value"].to_list()
    assert [struct.pack("d", value) for value in read] == [struct.pack("d", value) for value in values]


def test_rows_after_the_checkpoint_that_was_resumed_are_dropped(tmp_path: Path) -> None:
    first = MetricsTable(tmp_path, 1)
    save(tmp_path, first, 1)
    first.append(1, {"a": 1.0})
    first.flush()
    first.append(2, {"a": 2.0})
    save(tmp_path, first, 1)
    first.append(3, {"a": 3.0})
    first.flush()
    assert steps(tmp_path) == [1, 2, 3]
    second = MetricsTable(tmp_path, 2)
    save(tmp_path, second, 2)
    assert steps(tmp_path) == [1, 2]
    second.append(3, {"a": 30.0})
    second.flush()
    read = read_table(tmp_path, "metrics")
    assert read.select("start", "step", "value").rows() == [(1, 1, 1.0), (1, 2, 2.0), (2, 3, 30.0)]


def test_a_cut_whose_row_was_never_written_is_named_by_the_next_row(tmp_path: Path) -> None:
    table = MetricsTable(tmp_path, 1)
    table.append(1, {"a": 1.0})
    lost = table.cut()
    table.append(2, {"a": 2.0})
    save(tmp_path, table, 1)
    assert table.parts() == []
    assert steps(tmp_path) == [1, 2]
    assert len(list((tmp_path / "metrics").iterdir())) == 2
    assert lost == ["part-s1-000001.parquet"]


def test_parts_between_saves_become_one(tmp_path: Path) -> None:
    table = MetricsTable(tmp_path, 1)
    for step in range(3):
        table.append(step, {"a": float(step)})
        table.flush()
    kept = (tmp_path / "metrics/part-s1-000001.parquet").read_bytes()
    table.append(3, {"a": 3.0})
    save(tmp_path, table, 1)
    assert [path.name for path in (tmp_path / "metrics").iterdir()] == ["part-s1-000004.parquet"]
    (tmp_path / "metrics/part-s1-000001.parquet").write_bytes(kept)
    assert steps(tmp_path) == [0, 1, 2, 3]


def test_a_start_that_died_before_it_was_recorded_leaves_nothing(tmp_path: Path) -> None:
    dead = MetricsTable(tmp_path, 1)
    dead.append(0, {"a": 1.0})
    dead.flush()
    again = MetricsTable(tmp_path, 1)
    again.append(7, {"a": 1.0})
    again.flush()
    assert steps(tmp_path) == [7]


@settings(max_examples=20, deadline=None)
@given(st.lists(groups, min_size=1, max_size=8), st.data())
def test_statistics_recomputed_from_the_group_table_agree_with_those_resumed(
    tmp_path_factory: pytest.TempPathFactory, found: list[GroupRecord], data: st.DataObject
) -> None:
    """Settle, save at one point, die at a later one, go on from the save: table and store tell one story."""
    run_dir = tmp_path_factory.mktemp("run")
    saved = data.draw(st.integers(0, len(found)))
    died = data.draw(st.integers(saved, len(found)))
    pool: list[tuple[str, str | None, str | None]] = [(record.task_id, None, None) for record in found]

    def play(store: TaskStatsStore, table: GroupsTable, settled: list[GroupRecord]) -> None:
        for record in settled:
            store.hold(record)
        for intake, record in store.flush():
            table.append(record, intake)
        table.flush()

    def save(store: TaskStatsStore, table: GroupsTable, start: int) -> dict[str, Any]:
        names = table.cut()
        append_row(run_dir / "checkpoints.jsonl", {"parts": {"start": start, "groups": names}})
        table.confirm(names)
        return store.snapshot(start=start, next_seq=0)

    first, table = TaskStatsStore(pool), GroupsTable(run_dir, 1)
    play(first, table, found[:saved])
    state = save(first, table, 1)
    play(first, table, found[saved:died])
    second, table = TaskStatsStore(pool), GroupsTable(run_dir, 2)
    second.load(state)
    save(second, table, 2)
    play(second, table, found[saved:])
    again = TaskStatsStore(pool)
    rows = records(read_table(run_dir, "groups"))
    assert [intake for intake, _ in rows] == list(range(len(found)))
    for _, record in rows:
        again.settle(record)
    assert repr(again.snapshot(start=2, next_seq=0)) == repr(second.snapshot(start=2, next_seq=0))


def test_a_run_can_be_read_while_it_writes(tmp_path: Path) -> None:
    done = threading.Event()

    def write() -> None:
        table = MetricsTable(tmp_path, 1)
        for step in range(60):
            table.append(step, {"a": 1.0})
            table.flush()
            if step % 3 == 2:
                save(tmp_path, table, 1)
        done.set()

    writer = threading.Thread(target=write)
    writer.start()
    seen = 0
    while not done.is_set():
        found = steps(tmp_path)
        assert found == list(range(len(found)))
        assert len(found) >= seen
        seen = len(found)
    writer.join()
    assert steps(tmp_path) == list(range(60))


def test_usage_and_empty_tables(tmp_path: Path) -> None:
    assert read_table(tmp_path, "usage").is_empty()
    assert read_table(tmp_path, "groups").schema["members"] == pl.List
    table = UsageTable(tmp_path, 3)
    table.append(Usage(4, 1, "r", "t", "e", "policy", calls=2, input_tokens=9, output_tokens=3, seconds=0.5))
    table.flush()
    row = read_table(tmp_path, "usage").row(0, named=True)
    assert (row["start"], row["member"], row["policy"], row["phase"]) == (3, 1, "main", "train")
    assert (row["calls"], row["input_tokens"], row["cost"]) == (2, 9, None)


def test_problems_are_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="groups, metrics, usage"):
        read_table(tmp_path, "nothing")  # type: ignore[arg-type]
    table = GroupsTable(tmp_path, 1)
    table.append(group(0, "t", [scored(1.0)]), 0)
    path = table.flush()
    assert path is not None
    read = pq.read_table(path)
    pq.write_table(read.replace_schema_metadata({"platoon.table": "groups", "platoon.version": "9"}), path)
    with pytest.raises(ValueError, match="format 9"):
        read_table(tmp_path, "groups")
    path.unlink()
    append_row(tmp_path / "checkpoints.jsonl", {"parts": {"groups": [path.name]}})
    with pytest.raises(ValueError, match=r"part-s1-000001\.parquet, which is missing"):
        read_table(tmp_path, "groups")
