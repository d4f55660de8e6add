"""The files of evaluation rollouts: writing one, judging what is kept, finding all of them.

A rollout is there when its metadata is: it is written last, and whole. What does not read counts as errored.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from platoon.eval.calls import CallRow, call_rows
from platoon.eval.output import METADATA, ROLLOUTS, rollout_files
from platoon.eval.records import Judging, Kept, RolloutRecord, failed, judge
from platoon.gateway.dump import to_dict
from platoon.rollout.episode import Episode
from platoon.stats.files import write_atomic
from platoon.stats.jsonl import read_jsonl

COLLECTION = "trajectory_collection.json"
MALFORMED = (LookupError, TypeError, ValueError, AttributeError)
log = logging.getLogger("platoon.eval")


@dataclass(frozen=True)
class Finished:
    """A kept rollout: its verdict and its model calls."""

    record: RolloutRecord
    calls: tuple[CallRow, ...] = ()


def keep(
    directory: Path, kept: Kept, played: Episode | str, provenance: Mapping[str, Any], judging: Judging
) -> RolloutRecord:
    """Write a finished rollout's files and judge it. `played` is a text when the rollout raised.

    An earlier attempt's metadata goes first and the new one comes last: at no time do two attempts mix.
    """
    directory.mkdir(parents=True, exist_ok=True)
    (directory / METADATA).unlink(missing_ok=True)
    (directory / COLLECTION).unlink(missing_ok=True)
    if isinstance(played, str):
        record = failed(kept, played)
    elif played.collection is None:
        kept = replace(kept, wall_time_seconds=played.seconds)
        outcome = played.outcome
        record = failed(kept, played.error or outcome.status, outcome.status, outcome.failure_kind)
    else:
        kept = replace(kept, wall_time_seconds=played.seconds, source_path=str(directory / COLLECTION))
        dumped = to_dict(played.collection)
        record = judge(dumped, kept, judging)
        write_atomic(directory / COLLECTION, json.dumps(dumped).encode())
    metadata = {
        "task_id": kept.task_id,
        "rollout_index": kept.rollout_index,
        "source_path": kept.source_path,
        "wall_time_seconds": kept.wall_time_seconds,
        "error": record.error,
        "outcome_status": record.outcome_status,
        "failure_kind": record.failure_kind,
        "reward_key": record.reward_key,
        "created_at": datetime.now(UTC).isoformat(timespec="seconds"),
        "status": "completed" if record.valid else "errored",
        "usage": record.usage,
        "cost": record.cost,
        "backend": {"failed_calls": record.failed_calls},
        "judges": record.judges,
        "provenance": dict(provenance),
    }
    write_atomic(directory / METADATA, json.dumps(metadata, indent=1).encode())
    return record


def read(directory: Path, judging: Judging) -> Finished | None:
    """A kept rollout, judged again with these settings; None when there is none."""
    try:
        metadata = json.loads((directory / METADATA).read_bytes())
        kept = Kept(
            task_id=str(metadata["task_id"]),
            rollout_index=int(metadata["rollout_index"]),
            wall_time_seconds=float(metadata.get("wall_time_seconds") or 0.0),
            source_path=str(directory / COLLECTION),
        )
    except FileNotFoundError:
        return None
    except MALFORMED as error:
        named = Kept(directory.parent.name, _index(directory))
        return Finished(failed(named, f"{directory / METADATA} does not read: {error}"))
    raised, left_nothing = metadata.get("outcome_status") is None, metadata.get("source_path") is None
    if metadata.get("error") and (raised or left_nothing):
        text, status = str(metadata["error"]), metadata.get("outcome_status")
        return Finished(failed(kept, text, status, metadata.get("failure_kind")))
    try:
        collection = json.loads((directory / COLLECTION).read_bytes())
        return Finished(judge(collection, kept, judging), tuple(call_rows(collection, kept)))
    except (OSError, *MALFORMED) as error:
        return Finished(failed(kept, f"{directory / COLLECTION} does not read: {error}"))


def read_all(output: Path, judging: Judging) -> list[Finished]:
    """Every kept rollout, by task id (numbers in it in their order) and index.

    Without any, the collections of every `.json` and `.jsonl` file under `rollouts/`, indices in file order.
    """
    found = [one for path in rollout_files(output) if (one := read(path.parent, judging)) is not None]
    found = found or list(_dumps(output / ROLLOUTS, judging))
    return sorted(found, key=lambda one: (_natural(one.record.task_id), one.record.rollout_index))


def _dumps(directory: Path, judging: Judging) -> Iterator[Finished]:
    counts: dict[str, int] = {}
    for path in sorted([*directory.glob("**/*.json"), *directory.glob("**/*.jsonl")]):
        for collection in _collections(path):
            try:
                root = next(iter(collection["trajectories"].values()))
                task_id = str((root.get("task") or {}).get("id") or collection.get("id") or path.stem)
                kept = Kept(task_id, counts.get(task_id, 0), source_path=str(path))
                one = Finished(judge(collection, kept, judging), tuple(call_rows(collection, kept)))
            except (StopIteration, *MALFORMED) as error:
                log.warning("%s: a collection does not read: %s", path, error)
                continue
            counts[task_id] = kept.rollout_index + 1
            yield one


def _collections(path: Path) -> list[dict[str, Any]]:
    if path.suffix == ".jsonl":
        lines = read_jsonl(path)
        for problem in lines.problems:
            log.warning("%s", problem)
        rows = lines.rows
    else:
        try:
            rows = [json.loads(path.read_bytes())]
        except ValueError as error:
            log.warning("%s is not JSON: %s", path, error)
            rows = []
    return [row for row in rows if isinstance(row, dict) and isinstance(row.get("trajectories"), dict)]


def _natural(text: str) -> list[tuple[int, int, str]]:
    """Sorts `test/9` before `test/10`."""
    parts = re.split(r"(\d+)", text, flags=re.ASCII)
    return [(1, int(part), part) if number % 2 else (0, 0, part) for number, part in enumerate(parts)]


def _index(directory: Path) -> int:
    tail = directory.name.removeprefix("rollout_")
    return int(tail) if tail.isascii() and tail.isdigit() else 0
