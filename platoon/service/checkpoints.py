"""Checkpoints on disk: data directories that appear whole or not at all, and one small record that names each.

A record is replaced by rename, so a checkpoint that is overwritten is at every moment the old or the new one. Data
that no record names (a save that was cut off) is removed when a store opens that no other server holds.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import shutil
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
    if not path.startswith("tinker://") or len(parts) != 3 or parts[1] not in KINDS or not NAME.fullmatch(parts[0]):
        raise UnknownCheckpoint(f"{path!r} is not a checkpoint path (tinker://MODEL/weights/NAME)")
    return parts[0], cast(Kind, parts[1]), parts[2]


class CheckpointStore:
    """All checkpoints below one directory. Thread-safe; `save` blocks until the data is on disk.

    Several servers may share a directory: what counts is on disk, and only one that is alone there tidies up.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        for name in ("partial", "data", "records"):
            (root / name).mkdir(parents=True, exist_ok=True)
        self._presence = os.open(root / "lock", os.O_RDWR | os.O_CREAT, 0o644)
        try:
            fcntl.flock(self._presence, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self._remove_unfinished()
        except BlockingIOError:
            pass
        fcntl.flock(self._presence, fcntl.LOCK_SH)

    def close(self) -> None:
        os.close(self._presence)

    def _remove_unfinished(self) -> None:
        """Remove data that no record names, never what somebody else put here."""
        named = {checkpoint.data for checkpoint in self.all()}
        for path in [*(self.root / "data").iterdir(), *(self.root / "partial").iterdir()]:
            if OURS.fullmatch(path.name) and path.name not in named:
                _remove(path)

    def find(self, model_id: str, kind: str, name: str) -> Checkpoint | None:
        return self._read(self._record_file(model_id, kind, name)) if NAME.fullmatch(name) else None

    def at(self, path: str) -> Checkpoint:
        """The checkpoint of a `tinker://` path. UnknownCheckpoint when there is none."""
        found = self.find(*parse_path(path))
        if found is None:
            raise UnknownCheckpoint(f"there is no checkpoint {path}")
        return found

    def all(self, model_id: str | None = None) -> list[Checkpoint]:
        """Checkpoints of one model, or of all, oldest first."""
        files = (self.root / "records").glob("*.json")
        read = [self._read(file) for file in files if model_id is None or file.name.startswith(f"{model_id}.")]
        return sorted((c for c in read if c is not None), key=lambda c: (c.created, c.path))

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
        except OSError as error:
            free = shutil.disk_usage(self.root).free
            raise OSError(f"{self.root} cannot be written ({error}; {free:,} bytes are free there)") from error
        finally:
            shutil.rmtree(partial, ignore_errors=True)
        _sync(self.root / "data")
        saved = replace(checkpoint, data=data, size_bytes=size)
        old = self.find(saved.model_id, saved.kind, saved.name)
        self._write(saved)
        if old is not None:
            _remove(self.folder(old))
        return saved

    def set_ttl(self, checkpoint: Checkpoint, seconds: float | None) -> None:
        """Let the checkpoint expire `seconds` from now; None: never."""
        self._write(replace(checkpoint, expires=None if seconds is None else time.time() + seconds))

    def delete(self, checkpoint: Checkpoint) -> None:
        self._record_file(checkpoint.model_id, checkpoint.kind, checkpoint.name).unlink(missing_ok=True)
        _remove(self.folder(checkpoint))

    def _read(self, file: Path) -> Checkpoint | None:
        """The record in a file; None when there is none or it has expired, which also removes it."""
        try:
            checkpoint = Checkpoint(**json.loads(file.read_text(encoding="utf-8")))
        except FileNotFoundError:
            return None
        except (TypeError, ValueError) as error:
            raise ValueError(f"{file} is not a checkpoint record; move it away: {error}") from error
        if checkpoint.expires is not None and checkpoint.expires <= time.time():
            self.delete(checkpoint)
            return None
        return checkpoint

    def _write(self, checkpoint: Checkpoint) -> None:
        file = self._record_file(checkpoint.model_id, checkpoint.kind, checkpoint.name)
        temporary = self.root / "partial" / f"{uuid.uuid4().hex}.json"
        temporary.write_text(json.dumps(asdict(checkpoint)), encoding="utf-8")
        _sync(temporary)
        os.replace(temporary, file)
        _sync(file.parent)

    def _record_file(self, model_id: str, kind: str, name: str) -> Path:
        return self.root / "records" / f"{model_id}.{kind}.{name}.json"


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
