"""What `platoon tasks` prints and writes, from our snapshots and those of platoon 0.4.0."""

from __future__ import annotations

import csv
import io
import json
import shutil
from pathlib import Path

import polars as pl
import pytest

from platoon.config import ConfigError
from platoon.stats.export import NoStatistics, export, read_statistics, show
from platoon.stats.jsonl import append_row
from platoon.stats.passk import informative_at
from platoon.stats.schema import EntryInfo
from platoon.stats.snapshot import write_snapshot
from platoon.stats.store import TaskStatsStore
from tests.stats.groups import group, scored

OLD_RUN = Path(__file__).parent / "fixtures" / "run-written-by-platoon-0.4.0"


HEADER = (
    "task_id,entry,label,groups,reported_groups,attempts,passes,informative_groups,all_pass_groups,all_fail_groups,"
    "uniform_mixed_groups,uniform_streak,no_evidence_streak,drawn,outstanding,fate_consumed,fate_stale,fate_failed,"
    "fate_skipped,fate_lost,fate_rejected,group_size,pass_rate,pass_at_G,informative_at_G,newest_version"
)


def make_run(run_dir: Path) -> TaskStatsStore:
    """Three tasks of two labels; `b` passes half the time, `a` always."""
    tasks: list[tuple[str, str | None, str | None]] = [("b", "e", "x"), ("a", "e", "y"), ('odd,"id"', "e", None)]
    store = TaskStatsStore(tasks, {"e": EntryInfo(group_size=2)})
    for seq, (task, rewards) in enumerate([("b", [1.0, 0.0]), ("a", [1.0, 1.0]), ("a", [1.0, 1.0])]):
        store.draw(1, seq, task, seq)
        store.settle(group(seq, task, [scored(r, version=3) for r in rewards], version=3))
    store.fate(1, 0, "consumed")
    record = write_snapshot(store, run_dir / "tasks" / "state-s1-000001.parquet", 1, 3)
    append_row(run_dir / "checkpoints.jsonl", {"name": "000001", "batch": 1, "policy_version": 4, "tasks": record})
    return store


def test_show(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make_run(tmp_path)
    lines = show(tmp_path).split("\n")
    assert lines[0] == f"{tmp_path}: checkpoint 000001, policy version 4, 2 of 3 tasks with a settled group"
    assert lines[1].split() == [
        "task", "groups", "pass/att", "E[p]", "E[pass@G]", "E[inf]", "newest", "v", "out",
        "consumed/stale/failed/skipped/lost/rejected",
    ]  # fmt: skip
    assert [line.split()[0] for line in lines[2:]] == ["b", "a"]
    assert lines[2].split()[1:3] == ["1", "1/2"]
    assert lines[2].endswith("  0                                  1/0/0/0/0/0")
    assert len({len(line) for line in lines[1:]}) == 1
    assert [line.split()[0] for line in show(tmp_path, sort="groups").split("\n")[2:]] == ["a", "b"]
    assert [line.split()[0] for line in show(tmp_path, sort="pass_rate", top=1).split("\n")[2:]] == ["b"]
    assert show(tmp_path, label="y").split("\n")[0].endswith("1 of 1 tasks of label y with a settled group")
    with pytest.raises(ConfigError, match=r"--label none: no task of .* has it; its labels are x, y"):
        show(tmp_path, label="none")
    assert capsys.readouterr().err == ""


def test_export_in_every_format(tmp_path: Path) -> None:
    store = make_run(tmp_path)
    text = export(tmp_path, "csv")
    assert text is not None
    assert "\r" not in text
    lines = text.split("\n")
    assert lines[0] == HEADER
    assert lines[2].startswith("a,e,y,2,2,4,4,0,2,0,0,2,0,2,2,0,0,0,0,0,0,2,")
    assert lines[2].endswith(",3")
    rows = list(csv.DictReader(io.StringIO(text)))
    assert [row["task_id"] for row in rows] == ["b", "a", 'odd,"id"']
    assert (rows[2]["newest_version"], rows[2]["label"]) == ("", "")
    lines = (export(tmp_path, "jsonl") or "").splitlines()
    first = json.loads(lines[0])
    assert ",".join(first) == HEADER
    assert first["informative_at_G"] == informative_at(*store.posterior("b", now=4), 2)
    assert (first["groups"], first["outstanding"], first["fate_consumed"], first["newest_version"]) == (1, 0, 1, 3)
    assert export(tmp_path, "parquet", tmp_path / "out" / "tasks.parquet") is None
    frame = pl.read_parquet(tmp_path / "out" / "tasks.parquet")
    assert ",".join(frame.columns) == HEADER
    assert frame.to_dicts() == [json.loads(line) for line in lines]
    assert export(tmp_path, "csv", tmp_path / "tasks.csv") is None
    assert (tmp_path / "tasks.csv").read_text() == text
    with pytest.raises(ValueError, match="-o FILE"):
        export(tmp_path, "parquet")


def test_the_run_of_platoon_0_4_0(capsys: pytest.CaptureFixture[str]) -> None:
    lines = show(OLD_RUN, top=3).split("\n")
    assert lines[0].endswith("checkpoint 000016_interrupted, policy version 16, 64 of 64 tasks with a settled group")
    assert len(lines) == 5
    rows = [json.loads(line) for line in (export(OLD_RUN, "jsonl") or "").splitlines()]
    assert [row["task_id"] for row in rows] == [f"train:{i}" for i in range(64)]
    assert sum(row["groups"] for row in rows) == 68
    assert sum(row["informative_groups"] for row in rows) == 63
    assert sum(row["outstanding"] for row in rows) == 8
    assert {row["group_size"] for row in rows} == {8}
    assert capsys.readouterr().err == ""


def test_an_older_snapshot_stands_in_and_the_newer_one_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run_dir = tmp_path / "run"
    shutil.copytree(OLD_RUN, run_dir)
    (run_dir / "tasks/state-s1-000016_interrupted.json").write_text("{}")
    with (run_dir / "checkpoints.jsonl").open("a") as file:
        file.write('{"name": "torn')
    found = read_statistics(run_dir)
    assert (found.checkpoint, found.version) == ("recovery-000015", 15)
    show(run_dir)
    noted = capsys.readouterr().err
    assert "000016_interrupted" in noted
    assert "cut short" in noted


def test_runs_without_statistics(tmp_path: Path) -> None:
    with pytest.raises(NoStatistics, match=r"no checkpoints\.jsonl"):
        show(tmp_path)
    append_row(tmp_path / "checkpoints.jsonl", {"name": "c"})
    with pytest.raises(NoStatistics, match="no checkpoint has"):
        export(tmp_path, "csv")
