"""Deleting old recovery checkpoints from the training service, beside training.

Promise: nothing is deleted that a resume, a permanent checkpoint, an evaluation or a rollout in flight may still need,
and nothing that this run's own `checkpoints.jsonl` does not name. What was deleted is a line of
`checkpoints_deleted.jsonl`. A service that cannot delete, or keeps failing, ends pruning for this start, never the run.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal, Protocol

from platoon.stats.jsonl import JsonlTail, append_row
from platoon.train.checkpoints import FILE as CHECKPOINTS
from platoon.train.failures import DeletionUnsupported, ServiceError

log = logging.getLogger("platoon.train")
FILE = "checkpoints_deleted.jsonl"
FAILURES_IN_A_ROW = 3
LEAVE_SECONDS = 30.0
_PATH = re.compile(r"tinker://[^/]+/(weights|sampler_weights)/[^/]+")


class Remover(Protocol):
    """Deletes checkpoints of a service. DeletionUnsupported when it cannot; ServiceError when it did not."""

    async def delete(self, path: str) -> Literal["deleted", "absent"]: ...

    async def close(self) -> None: ...


@dataclass(frozen=True)
class Recovery:
    """One recovery checkpoint: its two paths, and the files below `tasks/` that its rows name."""

    name: str
    state_path: str
    sampler_path: str
    version: int | None
    starts: frozenset[int]
    files: tuple[str, ...]

    @property
    def paths(self) -> tuple[str, str]:
        return self.state_path, self.sampler_path


@dataclass(frozen=True)
class Rules:
    """What must stay. `bound`: the largest staleness bound. `in_use`: paths that samplers work on now."""

    keep: int
    start: int
    bound: int
    version: int
    in_use: Collection[str] = ()


def recovery_checkpoints(rows: Sequence[Mapping[str, Any]]) -> list[Recovery]:
    """Recovery checkpoints by their newest row, oldest first; rows of one state path are one checkpoint."""
    merged: dict[str, list[Mapping[str, Any]]] = {}
    for row in rows:
        path = row.get("state_path")
        if path and str(row.get("name", "")).startswith("recovery-"):
            found = merged.pop(str(path), [])
            merged[str(path)] = [*found, row]
    return [_recovery(path, found) for path, found in merged.items()]


def doomed(rows: Sequence[Mapping[str, Any]], gone: Collection[str], rules: Rules) -> list[Recovery]:
    """The checkpoints to delete, oldest first. `gone`: paths recorded as deleted or absent.

    Never the newest `keep` that are still there, the resume point, one that shares a path with a permanent row or a
    sampler in use, or one that this start saved and whose version data within the staleness bound may still name.
    """
    found = recovery_checkpoints(rows)
    standing = [one for one in found if one.state_path not in gone]
    resume = next((row["state_path"] for row in reversed(rows) if row.get("state_path")), None)
    held = {one.state_path for one in standing[-rules.keep :]} | set(rules.in_use) | {resume}
    for row in rows:
        if not str(row.get("name", "")).startswith("recovery-"):
            held |= {row.get("state_path"), row.get("sampler_path")}

    def fresh(one: Recovery) -> bool:
        return rules.start in one.starts and (one.version is None or rules.version - one.version <= rules.bound)

    return [
        one
        for one in found
        if not held & set(one.paths) and not fresh(one) and any(p not in gone and _PATH.fullmatch(p) for p in one.paths)
    ]


def _recovery(path: str, rows: Sequence[Mapping[str, Any]]) -> Recovery:
    newest = rows[-1]
    version = newest.get("policy_version")
    records = [row[key] for row in rows for key in ("tasks", "dispatch", "parts") if isinstance(row.get(key), Mapping)]
    files = [record[key] for record in records for key in ("file", "kept") if isinstance(record.get(key), str)]
    return Recovery(
        name=str(newest.get("name")),
        state_path=path,
        sampler_path=str(newest.get("sampler_path") or ""),
        version=version if isinstance(version, int) else None,
        starts=frozenset(int(record["start"]) for record in records if isinstance(record.get("start"), int)),
        files=tuple(dict.fromkeys(files)),
    )


@dataclass(frozen=True)
class PrunerParts:
    """`rules` of this moment; `open_remover` opens a service session of the pruner's own."""

    run_dir: Path
    rules: Callable[[], Rules]
    open_remover: Callable[[], Awaitable[Remover]]


class Pruner:
    """Deletes what is doomed after every save it is told of; a save during a pass asks for one more pass."""

    def __init__(self, parts: PrunerParts) -> None:
        self._parts = parts
        self._asked = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()
        self._stopped = False
        self._remover: Remover | None = None
        self._failures = 0
        self._saves = JsonlTail(parts.run_dir / CHECKPOINTS)
        self._deletions = JsonlTail(parts.run_dir / FILE)
        self._rows: list[Mapping[str, Any]] = []  # less those of checkpoints that are gone
        self._gone: set[str] = set()  # paths of `_rows` that are recorded as deleted or absent
        self._counts: dict[str, float] = {"deleted": 0.0, "delete_failures": 0.0}

    def saved(self) -> None:
        """A recovery checkpoint was saved."""
        if not self._stopped:
            self._idle.clear()
            self._asked.set()

    def metrics(self) -> dict[str, float]:
        """`checkpoint/*`: paths deleted and failures of this start, whether a pass runs, and what is kept."""
        found = {f"checkpoint/{key}": value for key, value in self._counts.items()}
        return {**found, "checkpoint/pruning": float(not self._idle.is_set())}

    async def idle(self, seconds: float = LEAVE_SECONDS) -> None:
        """Wait until no pass is owed, at most `seconds`."""
        try:
            async with asyncio.timeout(seconds):
                await self._idle.wait()
        except TimeoutError:
            log.warning("recovery checkpoints are still being deleted after %.0f s; the next start goes on", seconds)

    async def run(self) -> None:
        """The loop; ends by cancellation, or when deletion is given up for this start."""
        try:
            while not self._stopped:
                await self._asked.wait()
                self._asked.clear()
                await self._pass()
                if not self._asked.is_set():
                    self._idle.set()
        finally:
            self._idle.set()
            if self._remover is not None:
                await self._remover.close()

    async def _pass(self) -> None:
        self._read()
        try:
            for one in doomed(self._rows, self._gone, self._parts.rules()):
                for path in one.paths:
                    if path in self._gone or not _PATH.fullmatch(path):
                        continue
                    await self._delete(one, path)
                    if self._stopped:
                        return
        except OSError as error:
            self._give_up(f"the run directory cannot be written ({error})")
            return
        self._read()
        kept = recovery_checkpoints(self._rows)
        self._counts["recovery_kept"] = sum(one.state_path not in self._gone for one in kept)
        self._forget({one.state_path for one in kept if self._gone.issuperset(one.paths)})

    def _read(self) -> None:
        """Take in what was saved and what was deleted since the last time: a pass costs the same in any run."""
        self._rows += self._saves.read()
        self._gone |= {str(row["path"]) for row in self._deletions.read() if row.get("path")}

    def _forget(self, states: Collection[str]) -> None:
        forgotten = [row for row in self._rows if row.get("state_path") in states]
        self._rows = [row for row in self._rows if row.get("state_path") not in states]
        self._gone -= {str(row.get(key)) for row in forgotten for key in ("state_path", "sampler_path")}

    async def _delete(self, one: Recovery, path: str) -> None:
        try:
            if self._remover is None:
                self._remover = await self._parts.open_remover()
            result = await self._remover.delete(path)
        except DeletionUnsupported as error:
            log.error("this service cannot delete checkpoints (%s); checkpoint.keep_recovery has no effect", error)
            self._stopped = True
            return
        except ServiceError as error:
            self._failed(f"{path} was not deleted ({error})")
            return
        is_state = path == one.state_path
        if result == "absent" and not self._counts["deleted"]:
            # a service without this route answers 404 too; only one that has deleted before is believed
            if is_state and self._parts.rules().start in one.starts:
                self._failed(f"{path} is not known to the service, though this start saved it")
            return
        if result == "absent" and is_state:
            log.warning("recovery checkpoint %s was already gone from the service", path)
        self._failures = 0
        self._counts["deleted"] += result == "deleted"
        self._record(one, path, result)
        if is_state and result == "deleted":
            self._unlink(one)

    def _record(self, one: Recovery, path: str, result: str) -> None:
        now = datetime.now(UTC).isoformat(timespec="seconds")
        row = {"path": path, "name": one.name, "policy_version": one.version, "result": result, "time": now}
        append_row(self._parts.run_dir / FILE, row)

    def _unlink(self, one: Recovery) -> None:
        """Remove the checkpoint's own files directly below `tasks/`."""
        for file in one.files:
            relative = Path(file)
            if len(relative.parts) == 2 and relative.parts[0] == "tasks":
                (self._parts.run_dir / relative).unlink(missing_ok=True)

    def _failed(self, why: str) -> None:
        self._failures += 1
        self._counts["delete_failures"] += 1
        log.info("%s", why)
        if self._failures >= FAILURES_IN_A_ROW:
            self._give_up(f"{FAILURES_IN_A_ROW} deletions in a row failed, the last: {why}")

    def _give_up(self, why: str) -> None:
        log.warning("recovery checkpoints are not deleted any more by this start: %s", why)
        self._stopped = True
