"""One evaluation rollout as it is judged and kept.

A rollout that did not end in a valid score is errored, with the reason; it is never counted as a failure of the policy.
The trajectory and the verdict's inputs are on disk, so a later run judges them again with its own settings.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from platoon.gateway.dump import to_dict
from platoon.rollout.episode import Episode
from platoon.stats.files import write_atomic

COLLECTION, METADATA = "trajectory_collection.json", "metadata.json"
USAGE_KEYS = ("calls", "prompt_tokens", "completion_tokens")


@dataclass(frozen=True)
class Judging:
    """What turns a trajectory into a verdict."""

    success_threshold: float = 1.0
    count_timeout_as_failure: bool = False


@dataclass(frozen=True)
class RolloutRecord:
    """One rollout. Valid when `error` is None; `success` and `reward` count only then."""

    task_id: str
    rollout_index: int
    success: bool
    reward: float
    error: str | None
    outcome_status: str | None
    reward_key: str | None = None
    wall_time_seconds: float = 0.0
    num_steps_root: int = 0
    num_steps_total: int = 0
    source_path: str | None = None
    usage: Mapping[str, Mapping[str, int]] = field(default_factory=dict)

    @property
    def valid(self) -> bool:
        return self.error is None

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def judge(collection: Mapping[str, Any], record: Mapping[str, Any], judging: Judging) -> RolloutRecord:
    """The verdict on a dumped collection. `record` gives task id, index, time, and the error of one that raised."""
    root = next(iter(collection["trajectories"].values()))
    outcome = root["misc"].get("outcome") or {}
    status = outcome.get("status")
    error = None if status == "scored" else str(root.get("error_message") or status or "no outcome")
    if status == "timeout" and judging.count_timeout_as_failure:
        error = None
    score = _score(root) if status == "scored" else None
    return RolloutRecord(
        task_id=str(record["task_id"]),
        rollout_index=int(record["rollout_index"]),
        success=score is not None and score >= judging.success_threshold,
        reward=float(root["reward"]),
        error=error,
        outcome_status=status,
        reward_key=outcome.get("reward_key"),
        wall_time_seconds=float(record.get("wall_time_seconds") or 0.0),
        num_steps_root=len(root["steps"]),
        num_steps_total=sum(len(t["steps"]) for t in collection["trajectories"].values()),
        source_path=record.get("source_path"),
        usage=usage_of(collection),
    )


def failed(task_id: str, index: int, error: str, seconds: float = 0.0) -> RolloutRecord:
    """A rollout that left no trajectory."""
    return RolloutRecord(task_id, index, False, 0.0, error, None, wall_time_seconds=seconds)


def _score(root: Mapping[str, Any]) -> float:
    """The environment's own score: the last step's, else the trajectory's reward."""
    rewards = root["steps"][-1]["misc"].get("reward_misc") or {} if root["steps"] else {}
    value = rewards.get("reward/success", rewards.get("success"))
    return float(root["reward"] if value is None else value)


def usage_of(collection: Mapping[str, Any]) -> dict[str, dict[str, int]]:
    """Calls and tokens by bucket (`policy`, `aux`, `judge`, `verifier`)."""
    buckets = {name: dict.fromkeys(USAGE_KEYS, 0) for name in ("policy", "aux", "judge", "verifier")}
    for trajectory in collection["trajectories"].values():
        role = (trajectory["misc"].get("agent") or {}).get("role")
        for action in (step["misc"].get("action_misc") for step in trajectory["steps"]):
            if isinstance(action, Mapping):
                kind = action.get("kind") or "policy"
                _count(buckets["verifier" if role in ("verifier", "judge") and kind != "judge" else kind], action)
        for call in trajectory["misc"].get("judge_calls") or ():
            _count(buckets["judge"], call)
    return buckets


def _count(bucket: dict[str, int], call: Mapping[str, Any]) -> None:
    usage = call.get("usage") or {}
    bucket["calls"] += 1
    for key in USAGE_KEYS[1:]:
        bucket[key] += int(usage.get(key) or 0)


def rollout_directory(output: Path, task_id: str, index: int) -> Path:
    """Where a rollout's files go."""
    return output / "rollouts" / re.sub(r"[^A-Za-z0-9_.-]", "_", task_id) / f"rollout_{index}"


def keep(
    directory: Path, task_id: str, index: int, episode: Episode, provenance: Mapping[str, Any], judging: Judging
) -> RolloutRecord:
    """Write a rollout's files (metadata last, so that a half-written rollout is made again) and judge it."""
    base = {
        "task_id": task_id,
        "rollout_index": index,
        "source_path": str(directory / COLLECTION),
        "wall_time_seconds": episode.seconds,
    }
    if episode.collection is None:
        record = failed(task_id, index, episode.error or episode.disposition, episode.seconds)
    else:
        dumped = to_dict(episode.collection)
        record = judge(dumped, base, judging)
        write_atomic(directory / COLLECTION, json.dumps(dumped, ensure_ascii=False).encode())
    metadata = {
        **base,
        "error": record.error,
        "outcome_status": record.outcome_status,
        "reward_key": record.reward_key,
        "created_at": datetime.now(UTC).isoformat(timespec="seconds"),
        "status": "completed" if record.valid else "errored",
        "usage": record.usage,
        "cost": None,
        "backend": provenance.get("backend"),
        "judges": provenance.get("judges"),
        "provenance": dict(provenance),
    }
    write_atomic(directory / METADATA, json.dumps(metadata, indent=1, ensure_ascii=False).encode())
    return record


def read(directory: Path, judging: Judging) -> RolloutRecord | None:
    """A kept rollout, judged again; None when there is none. One that does not read counts as errored."""
    try:
        metadata = json.loads((directory / METADATA).read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except ValueError as error:
        return failed(directory.parent.name, _index(directory), f"{directory / METADATA} does not read: {error}")
    try:
        collection = json.loads((directory / COLLECTION).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        text = metadata.get("error") or f"{directory / COLLECTION} does not read: {error}"
        return failed(str(metadata["task_id"]), int(metadata["rollout_index"]), str(text))
    return judge(collection, metadata, judging)


def _index(directory: Path) -> int:
    tail = directory.name.removeprefix("rollout_")
    return int(tail) if tail.isdigit() else 0
