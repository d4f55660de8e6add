"""Going on from a checkpoint: statistics, draws and kept groups as they stood.

What cannot be read back is named in the log and in `lock.json`, and costs as little as possible: an older snapshot of
the statistics, or groups rolled out again. The order of draws is never lost.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from platoon.credit import GroupOutput
from platoon.draw.fingerprint import fingerprint_changes
from platoon.draw.records import Fated
from platoon.stats.files import sha256
from platoon.stats.snapshot import SnapshotError, read_recorded
from platoon.stats.store import TaskStatsStore
from platoon.train.checkpoints import Checkpoint, read_rows
from platoon.train.dispatch import DispatchDriver, KeptGroup
from platoon.train.kept import KeptError, handed_back, read_kept

log = logging.getLogger("platoon.train")


@dataclass
class Restored:
    """What a resume could not take up as it was, for `lock.json` and the `start` event."""

    state_lost: str | None = None
    loaded: str | None = None
    sampling_changed: list[str] = field(default_factory=list)


def restore_statistics(run_dir: Path, resume: Checkpoint, store: TaskStatsStore) -> Restored:
    """Load the newest snapshot that reads back, the resume point's first. Empty statistics when none does."""
    restored = Restored()
    for row in reversed(read_rows(run_dir)):
        try:
            data = read_recorded(run_dir, row)
            if data is None:
                raise SnapshotError(f"checkpoint {row.get('name')!r} names no task statistics")
            store.load(data)
        except (SnapshotError, ValueError, KeyError, TypeError) as error:
            if row.get("name") == resume.name and restored.state_lost is None:
                restored.state_lost = str(error)
            continue
        restored.loaded = str(row.get("name"))
        break
    if restored.state_lost is not None:
        log.warning(
            "the task statistics of checkpoint %s are lost (%s); going on with those of %s",
            resume.name,
            restored.state_lost,
            restored.loaded or "no checkpoint",
        )
    return restored


def restore_draws(
    run_dir: Path,
    resume: Checkpoint,
    driver: DispatchDriver[GroupOutput],
    store: TaskStatsStore,
    restored: Restored,
) -> None:
    """Take up the dispatcher's state and the kept groups; else go on at the checkpoint's position."""
    batch_size = driver.dispatcher.settings.batch_size
    position = max(resume.batch * batch_size, _position(resume))
    try:
        state = _read_state(run_dir, resume)
        if state is None:
            raise ValueError("the checkpoint names no scheduler state")
        kept = _read_kept(run_dir, state)
        for warning in driver.load_state(state, kept):
            log.warning("%s", warning)
    except (OSError, ValueError, KeyError, TypeError) as error:
        log.warning("checkpoint %s: %s; its open draws are lost, the order goes on", resume.name, error)
        driver.dispatcher.seek(position)
        for start, seq, _, _ in store.lose_outstanding():
            driver.hooks.on_event(Fated((start, seq), "lost").event())
        return
    known = {(draw[0], draw[1]) for draw in driver.state().dispatch["outstanding"]}
    for start, seq, _, _ in store.outstanding:  # of an older snapshot: the events have their real fates
        if (start, seq) not in known:
            store.fate(start, seq, "lost")
    restored.sampling_changed = fingerprint_changes(state.get("fingerprint") or {}, driver.dispatcher.fingerprint)
    for change in restored.sampling_changed:
        log.warning("sampling changed since checkpoint %s: %s", resume.name, change)


def _position(resume: Checkpoint) -> int:
    value = resume.extra.get("next_position")
    return value if isinstance(value, int) and not isinstance(value, bool) else 0


def _read_state(run_dir: Path, resume: Checkpoint) -> dict[str, Any] | None:
    record = resume.dispatch
    if record is None:
        return None
    path = run_dir / str(record["file"])
    if sha256(path) != record.get("sha256"):
        raise ValueError(f"{path} changed after it was written: its SHA-256 is not the recorded one")
    state = json.loads(path.read_bytes())
    if not isinstance(state, dict):
        raise ValueError(f"{path} holds no JSON object")
    return state


def _read_kept(run_dir: Path, state: Mapping[str, Any]) -> list[KeptGroup[GroupOutput]]:
    record = state.get("kept")
    if not isinstance(record, Mapping) or "file" not in record:
        return []
    try:
        groups = read_kept(run_dir / str(record["file"]), record.get("sha256"))
    except KeptError as error:
        log.warning("%s; its groups are rolled out again", error)
        return []
    return [handed_back(group) for group in groups]
