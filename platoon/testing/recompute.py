"""Proving that a run's saved statistics are those of its group table and its events, bit for bit."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from platoon.stats.jsonl import read_jsonl
from platoon.stats.schema import EntryInfo, GroupRecord, MemberResult
from platoon.stats.snapshot import read_recorded
from platoon.stats.store import TaskStatsStore
from platoon.stats.tables import read_table
from platoon.testing.audit import line_of

COMPARED = ("run", "entries", "labels", "tasks", "outstanding")


def statistics_problems(run_dir: Path) -> list[str]:
    """Where the newest checkpoint's statistics differ from a recomputation; [] when nowhere.

    The run has to stand at that checkpoint (it ended, or nothing was done after it).
    """
    rows = read_jsonl(run_dir / "checkpoints.jsonl").rows
    recorded = read_recorded(run_dir, rows[-1])
    if recorded is None:
        return [f"checkpoint {rows[-1]['name']} names no statistics"]
    saved = {(row["name"], (row.get("dispatch") or {}).get("start")) for row in rows}
    store = _empty(recorded)
    for event in line_of(read_jsonl(run_dir / "tasks" / "events.jsonl").rows, saved):
        _apply(store, event)
    for row in read_table(run_dir, "groups").sort("intake").iter_rows(named=True):
        store.settle(group_record(row))
    made = store.snapshot(start=recorded["start"], next_seq=recorded["next_seq"])
    return [
        f"{path}: recorded {was!r}, recomputed {now!r}"
        for key in COMPARED
        for path, was, now in _differences(key, recorded[key], made[key])
    ]


def group_record(row: Mapping[str, Any]) -> GroupRecord:
    """A row of the group table as the record it was written from."""
    return GroupRecord(
        start=row["start"],
        seq=row["seq"],
        task_id=row["task_id"],
        entry=row["entry"],
        labels={one["column"]: one["label"] for one in row["labels"]},
        group_size=row["group_size"],
        sampler=row["sampler"],
        reason=row["reason"],
        score=row["score"],
        position=row["position"],
        drawn_at={row["policy"]: row["drawn_at"]},
        members=tuple(_member(one) for one in row["members"]),
        verdict=row["verdict"],
    )


def _member(row: Mapping[str, Any]) -> MemberResult:
    versions = {one["policy"]: (one["oldest"], one["newest"]) for one in row["versions"]}
    return MemberResult(**{**row, "versions": versions})


def _empty(recorded: Mapping[str, Any]) -> TaskStatsStore:
    entries = {
        name: EntryInfo(info["group_size"], info["success_threshold"], name)
        for name, info in recorded["entries"].items()
    }
    return TaskStatsStore(
        [(task_id, task["entry"], task["label"]) for task_id, task in recorded["tasks"].items()],
        entries,
        column=recorded["column"],
        group_size=recorded["group_size"],
        half_life=recorded["half_life_versions"],
        prior_strength=recorded["prior_strength"],
        no_evidence_limit=recorded["no_evidence_limit"],
    )


def _apply(store: TaskStatsStore, event: Mapping[str, Any]) -> None:
    if event["event"] == "draw":
        key = (event["start"], event["seq"])
        old = event.get("reissues")
        if old is None or not store.reissue((old[0], old[1]), key):
            store.draw(*key, event["task_id"], event["position"])
    elif event["event"] == "fate":
        store.fate(event["start"], event["seq"], event["fate"])


def _differences(path: str, was: Any, now: Any) -> list[tuple[str, Any, Any]]:
    """Leaves that differ; floats are compared exactly."""
    if isinstance(was, Mapping) and isinstance(now, Mapping):
        keys = [*was, *(key for key in now if key not in was)]
        return [found for key in keys for found in _differences(f"{path}.{key}", was.get(key), now.get(key))]
    if isinstance(was, list | tuple) and isinstance(now, list | tuple) and len(was) == len(now):
        pairs = zip(was, now, strict=True)
        return [found for i, (a, b) in enumerate(pairs) for found in _differences(f"{path}[{i}]", a, b)]
    return [] if was == now else [(path, was, now)]
