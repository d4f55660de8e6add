"""Checkpoints on disk: data directories that appear whole or not at all, and one small record that names each.

A record is replaced by rename, so a checkpoint that is overwritten is at every moment the old or the new one. Data
that no record names (a save that was cut off) is removed when the store opens. One server at a time may hold a store.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import shutil
import threading
import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal, cast

Kind = Literal["weights", "sampler_weights"]
KINDS = ("weights", "sampler_weights")
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:=+-]{0,149}")
OURS = re.compile(r"[0-9a-f]{32}(\.json)?")
LOCK_SECONDS = 10.0


class UnknownCheckpoint(ValueError):
    """No such checkpoint, or no such path."""


@dataclass(frozen=True)
class Checkpoint:
    """One saved checkpoint. `version` says which state of its model it holds; times are Unix seconds."""

    model_id: str
    kind: Kind
    name: str
    data: str
    version: int
    base_model: str
    rank: int
    created: float
    size_bytes: int
    expires: float | None = None
    user_metadata: Mapping[str, str] | None = None

    @property
    def path(self) -> str:
        return f"tinker://{self.model_id}/{self.kind}/{self.name}"


def parse_path(path: str) -> tuple[str, Kind, str]:
    """(model id, kind, name) of a `tinker://` path. UnknownCheckpoint when it is not one."""
    parts = path.removeprefix("tinker://").split("/")
    if not path.startswith("tinker://") or len(parts) != 3 or parts[1] not in KINDS:
        raise UnknownCheckpoint(f"{path!r} is not a checkpoint path (tinker://MODEL/weights/NAME)")
    return parts[0], cast(Kind, parts[1]), parts[2]


class CheckpointStore:
    """All checkpoints below one directory. Thread-safe; `save` blocks until the data is on disk."""

    def __init__(self, root: Path, *, lock_seconds: float = LOCK_SECONDS) -> None:
        self.root = root
        root.mkdir(parents=True, exist_ok=True)
        self._lock_file = _lock(root / "lock", lock_seconds)
        self._lock = threading.Lock()
        self._records: dict[tuple[str, str, str], Checkpoint] = {}
        self._open()

    def _open(self) -> None:
        for name in ("partial", "data", "records"):
            (self.root / name).mkdir(exist_ok=True)
        for file in (self.root / "records").glob("*.json"):
            try:
                checkpoint = Checkpoint(**json.loads(file.read_text(encoding="utf-8")))
            except (TypeError, ValueError) as error:
                raise ValueError(f"{file} is not a checkpoint record; move it away: {error}") from error
            self._records[checkpoint.model_id, checkpoint.kind, checkpoint.name] = checkpoint
        named = {checkpoint.data for checkpoint in self._records.values()}
        for folder in [*(self.root / "data").iterdir(), *(self.root / "partial").iterdir()]:
            if OURS.fullmatch(folder.name) and folder.name not in named:  # never what somebody else put here
                _remove(folder)

    def close(self) -> None:
        os.close(self._lock_file)

    def find(self, model_id: str, kind: str, name: str) -> Checkpoint | None:
        self._drop_expired()
        with self._lock:
            return self._records.get((model_id, kind, name))

    def at(self, path: str) -> Checkpoint:
        """The checkpoint of a `tinker://` path. UnknownCheckpoint when there is none."""
        model_id, kind, name = parse_path(path)
        found = self.find(model_id, kind, name)
        if found is None:
            raise UnknownCheckpoint(f"there is no checkpoint {path}")
        return found

    def all(self, model_id: str | None = None) -> list[Checkpoint]:
        """Checkpoints of one model, or of all, oldest first."""
        self._drop_expired()
        with self._lock:
            found = [c for c in self._records.values() if model_id in (None, c.model_id)]
        return sorted(found, key=lambda c: (c.created, c.path))

    def folder(self, checkpoint: Checkpoint) -> Path:
        return self.root / "data" / checkpoint.data

    def save(self, checkpoint: Checkpoint, write: Callable[[Path], None]) -> Checkpoint:
        """Have `write` fill an empty directory, then make it the data of `checkpoint`, replacing an older one."""
        if not NAME.fullmatch(checkpoint.name):
            raise ValueError(f"{checkpoint.name!r} cannot name a checkpoint: letters, digits and . _ : = + - only")
        data = uuid.uuid4().hex
        partial = self.root / "partial" / data
        partial.mkdir()
        try:
            write(partial)
            size = sum(_sync(file) for file in partial.rglob("*") if file.is_file())
            _sync(partial)
            os.rename(partial, self.root / "data" / data)
        finally:
            shutil.rmtree(partial, ignore_errors=True)
        _sync(self.root / "data")
        saved = replace(checkpoint, data=data, size_bytes=size)
        with self._lock:
            old = self._records.get((saved.model_id, saved.kind, saved.name))
            self._write_record(saved)
        if old is not None:
            shutil.rmtree(self.folder(old), ignore_errors=True)
        return saved

    def set_ttl(self, checkpoint: Checkpoint, seconds: float | None) -> None:
        """Let the checkpoint expire `seconds` from now; None: never."""
        with self._lock:
            self._write_record(replace(checkpoint, expires=None if seconds is None else time.time() + seconds))

    def delete(self, checkpoint: Checkpoint) -> None:
        with self._lock:
            if self._records.pop((checkpoint.model_id, checkpoint.kind, checkpoint.name), None) is None:
                return
            self._record_file(checkpoint).unlink(missing_ok=True)
        shutil.rmtree(self.folder(checkpoint), ignore_errors=True)

    def _drop_expired(self) -> None:
        now = time.time()
        with self._lock:
            expired = [c for c in self._records.values() if c.expires is not None and c.expires <= now]
        for checkpoint in expired:
            self.delete(checkpoint)

    def _write_record(self, checkpoint: Checkpoint) -> None:
        file = self._record_file(checkpoint)
        temporary = self.root / "partial" / f"{uuid.uuid4().hex}.json"
        temporary.write_text(json.dumps(asdict(checkpoint)), encoding="utf-8")
        _sync(temporary)
        os.replace(temporary, file)
        _sync(file.parent)
        self._records[checkpoint.model_id, checkpoint.kind, checkpoint.name] = checkpoint

    def _record_file(self, checkpoint: Checkpoint) -> Path:
        return self.root / "records" / f"{checkpoint.model_id}.{checkpoint.kind}.{checkpoint.name}.json"


def new_checkpoint(model_id: str, kind: Kind, name: str, **more: Any) -> Checkpoint:
    """A record for `CheckpointStore.save`, which fills in its data directory and size."""
    return Checkpoint(model_id, kind, name, data="", size_bytes=0, created=time.time(), **more)


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def _sync(path: Path) -> int:
    """Force a file or directory to disk; its size in bytes."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
        return os.fstat(handle).st_size
    finally:
        os.close(handle)


def _lock(path: Path, seconds: float) -> int:
    """Hold the file's lock. A server that was just killed may keep it for a moment, so wait some seconds."""
    handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    deadline = time.monotonic() + seconds
    while True:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return handle
        except BlockingIOError:
            if time.monotonic() > deadline:
                os.close(handle)
                raise ValueError(
                    f"{path.parent} is held by another training service; stop it or use another --state"
                ) from None
            time.sleep(0.05)
