"""`platoon tasks show | export`: the statistics of a run's tasks."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Literal

import cyclopts

app = cyclopts.App(name="tasks", help="Statistics of the tasks a run trains on.")


@app.command
def show(
    run_dir: Path,
    /,
    *,
    label: str | None = None,
    sort: Literal["informative", "pass_rate", "groups"] = "informative",
    top: int | None = None,
) -> int:
    """Print the tasks that have a settled group, from the newest checkpoint's statistics.

    Parameters
    ----------
    run_dir
        The run directory; the run may be going on.
    label
        Only tasks of this label.
    sort
        The order of the rows.
    top
        Only so many rows.
    """
    from platoon.stats.export import show as shown

    try:
        print(shown(run_dir, label, sort, top))
    except FileNotFoundError as error:
        print(f"platoon: {error}", file=sys.stderr)
        return 1
    return 0


@app.command
def export(
    run_dir: Path,
    /,
    *,
    groups: Annotated[bool, cyclopts.Parameter(negative=())] = False,
    format: Literal["parquet", "csv", "jsonl"] = "csv",
    out: Annotated[Path | None, cyclopts.Parameter(name=("--out", "-o"))] = None,
) -> int:
    """Write one row a task with its statistics, or one row a settled group.

    Parameters
    ----------
    run_dir
        The run directory; the run may be going on.
    groups
        Write the table of settled groups instead of the tasks: with every member (parquet, jsonl), or with the
        members' counts (csv).
    format
        The form of the rows.
    out
        The file to write; without it, rows go to stdout (parquet needs it).
    """
    from platoon.stats.export import export as exported
    from platoon.stats.export_groups import export_groups

    if format == "parquet" and out is None:
        print("platoon: --format parquet needs --out FILE", file=sys.stderr)
        return 64
    try:
        sys.stdout.write((export_groups if groups else exported)(run_dir, format, out) or "")
    except (FileNotFoundError, ValueError) as error:
        print(f"platoon: {error}", file=sys.stderr)
        return 1
    if out is not None:
        print(f"platoon: wrote {out} ({out.stat().st_size:,} bytes)", file=sys.stderr)
    return 0
