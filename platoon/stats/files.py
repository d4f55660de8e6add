"""Whole files, written so that a reader sees the old one or the new one, also across a power cut."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from pathlib import Path


def write_atomic(path: Path, content: bytes | Callable[[Path], None]) -> None:
    """Write `.<name>.partial` beside `path`, fsync it, rename it. A callable writes to the path it is given.

    Makes missing directories. Errors leave the old file and remove the partial one.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.partial")
    try:
        if callable(content):
            content(partial)
        else:
            partial.write_bytes(content)
        sync(partial)
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)  # gone already when it was renamed
    sync(path.parent)


def sync(path: Path) -> None:
    """Flush a file or directory to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sha256(path: Path) -> str:
    """Hex digest of a file's bytes."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
