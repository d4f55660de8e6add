"""`platoon tasks export --groups`: the table of settled groups of a run's line, as one file.

Works while the run trains. Parquet and JSON lines hold the table's own columns, members included, and stream from part
to file. CSV has counts in place of the members.
"""

from __future__ import annotations

import sys
from pathlib import Path

import polars as pl

from platoon.stats.export import Format, NoStatistics, check_form, read_statistics
from platoon.stats.files import write_atomic
from platoon.stats.store import TaskStatsStore
from platoon.stats.tables import GROUPS, with_table

ROW_GROUP = 50_000


def export_groups(run_dir: Path, format: Format = "csv", out: Path | None = None) -> str | None:
    """Write every settled group to `out`, or give the text back.

    NoStatistics when the run wrote no group. ValueError for Parquet without a file, an unknown format, a missing part
    and a part of a newer platoon.
    """
    check_form(format, out)
    if not any((run_dir / GROUPS.directory).glob("part-s*.parquet")):
        raise NoStatistics(f"{run_dir} has no {GROUPS.directory}/part-*.parquet: no group has settled in a run there")
    store = _store(run_dir) if format == "csv" else None

    def text(table: pl.LazyFrame) -> str:
        return flat(table, store).collect().write_csv() if format == "csv" else table.collect().write_ndjson()

    def write(table: pl.LazyFrame, path: Path) -> None:
        if format == "parquet":
            # bounds of each column's values cost a tenth of the time, and no reader of a whole run skips by them
            table.sink_parquet(
                path, compression="zstd", compression_level=1, statistics=False, row_group_size=ROW_GROUP
            )
        elif format == "csv":
            flat(table, store).sink_csv(path)
        else:
            table.sink_ndjson(path)

    if out is None:
        return with_table(run_dir, "groups", text)

    write_atomic(out, lambda partial: with_table(run_dir, "groups", lambda table: write(table, partial)))
    return None


def flat(groups: pl.LazyFrame, store: TaskStatsStore | None) -> pl.LazyFrame:
    """The table with `valid`, `passes` and `reward_mean` for members, and labels as `column=label;...`.

    `reward_mean` is over valid members, null without one. `passes` counts by the success thresholds of `store`, null
    without it.
    """
    field = pl.element().struct.field
    members = pl.col("members")
    labels = pl.concat_str(field("column"), pl.lit("="), field("label"))
    passes: pl.Expr = pl.lit(None, pl.Int64)
    if store is not None:
        passes = _passes(store)
    return groups.with_columns(
        labels=pl.col("labels").list.eval(labels).list.join(";"),
        valid=members.list.eval(field("valid")).list.sum().cast(pl.Int64),
        passes=passes,
        reward_mean=members.list.eval(field("reward").filter(field("valid"))).list.mean(),
    ).drop("members")


def _passes(store: TaskStatsStore) -> pl.Expr:
    """Members that pass, as `MemberResult.passes`, by the threshold of the task's entry."""
    by_task = {task_id: store.threshold(store.task(task_id).entry) for task_id in store.task_ids()}
    unlisted = pl.col("entry").map_elements(store.threshold, return_dtype=pl.Float64, skip_nulls=False)
    threshold = unlisted
    if by_task:
        known = pl.col("task_id").replace_strict(by_task, default=None, return_dtype=pl.Float64)
        threshold = pl.coalesce(known, unlisted)
    field = pl.element().struct.field
    found = pl.lit(None, pl.Int64)
    for limit in sorted({*by_task.values(), *store.thresholds()}):
        enough = field("scored") >= pl.when(field("flag")).then(1.0).otherwise(limit)
        # polars orders NaN above every number
        passed = (field("valid") & enough & field("scored").is_not_nan()).fill_null(False)
        counted = pl.col("members").list.eval(passed).list.sum().cast(pl.Int64)
        found = pl.when(threshold == limit).then(counted).otherwise(found)
    return found


def _store(run_dir: Path) -> TaskStatsStore | None:
    """The newest statistics, for their thresholds; None, and why on stderr, when there are none yet."""
    try:
        return read_statistics(run_dir).store
    except NoStatistics as error:
        print(f"platoon: `passes` stays empty, thresholds come with a checkpoint: {error}", file=sys.stderr)
        return None
