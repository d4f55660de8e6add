"""Parquet files joined by their pages: what readers see is the rows of all, in order."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from platoon.stats.export_groups import COPIED_ROWS, copy_parts, export_groups
from platoon.stats.parquet_join import ParquetFile, join
from platoon.stats.tables import GROUPS, GroupsTable, records
from tests.stats.groups import group, scored

COLUMNS = [
    ("text", st.text(max_size=3) | st.none(), pa.string()),
    ("number", st.integers(-(2**63), 2**63 - 1), pa.int64()),
    ("lists", st.lists(st.floats(allow_nan=False) | st.none(), max_size=3), pa.list_(pa.float64())),
    ("flag", st.booleans() | st.none(), pa.bool_()),
]
tables = st.lists(st.tuples(*(values for _, values, _ in COLUMNS)), max_size=6).map(
    lambda rows: pa.table(
        [pa.array([row[i] for row in rows], kind) for i, (_, _, kind) in enumerate(COLUMNS)],
        names=[name for name, _, _ in COLUMNS],
    )
)
WRITERS: list[dict[str, Any]] = [
    {"compression": "zstd", "row_group_size": 2},
    {"compression": "none", "use_dictionary": False, "write_statistics": False},
    {"compression": "snappy", "write_page_index": True, "data_page_version": "2.0", "write_page_checksum": True},
]


@settings(max_examples=15, deadline=None)
@given(st.lists(st.tuples(tables, st.sampled_from(WRITERS)), min_size=1, max_size=4))
def test_the_rows_of_all_files_in_order(
    tmp_path_factory: pytest.TempPathFactory, found: list[tuple[pa.Table, dict[str, Any]]]
) -> None:
    directory = tmp_path_factory.mktemp("joined")
    for index, (table, options) in enumerate(found):
        pq.write_table(table.replace_schema_metadata({"kept": "1"}), directory / f"{index}", **options)
    files = [ParquetFile.open(directory / f"{index}") for index in range(len(found))]
    join(files, directory / "all")
    wanted = pa.concat_tables([table for table, _ in found])
    read = pq.read_table(directory / "all")
    assert read.equals(wanted)
    assert read.schema.metadata == {b"kept": b"1"}
    assert pl.read_parquet(directory / "all").to_dicts() == wanted.to_pylist()
    joined = ParquetFile.open(directory / "all")
    assert (joined.rows, len(joined.row_groups)) == (wanted.num_rows, sum(len(file.row_groups) for file in files))


def part(run_dir: Path, start: int, rows: int) -> Path:
    table = GroupsTable(run_dir, start)
    for index in range(rows):
        table.append(group(index, "t", [scored(0.5)], start=start), index)
    path = table.flush()
    assert path is not None
    return path


def test_large_parts_are_copied_small_and_odd_ones_are_written_anew(tmp_path: Path) -> None:
    large, small = part(tmp_path, 1, 2 * COPIED_ROWS), part(tmp_path, 2, 300)
    export_groups(tmp_path, "parquet", tmp_path / "copied.parquet")
    assert pq.read_metadata(tmp_path / "copied.parquet").num_row_groups == 2, "pages were copied"
    copied = records(pl.read_parquet(tmp_path / "copied.parquet"))
    assert [record.start for _, record in copied] == [1] * (2 * COPIED_ROWS) + [2] * 300
    last = part(tmp_path, 3, 300)
    assert not copy_parts([large, small, last], tmp_path / "no")
    export_groups(tmp_path, "parquet", tmp_path / "written.parquet")
    assert records(pl.read_parquet(tmp_path / "written.parquet"))[: len(copied)] == copied
    odd = pq.read_table(large).drop_columns("score").replace_schema_metadata(GROUPS.metadata([]))
    pq.write_table(odd, large)
    assert not copy_parts([large], tmp_path / "no")
    assert not copy_parts([], tmp_path / "no")
    assert not (tmp_path / "no").exists()


def test_another_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(b"no")
    with pytest.raises(ValueError, match="x is not a Parquet file"):
        ParquetFile.open(tmp_path / "x")
