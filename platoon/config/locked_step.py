"""Making something once for everyone who needs it: a key, a file lock, make, rename.

For what a site keeps (data sets, images, toolchains): two processes that need the same key at once make it once, and
the second waits. What is there under its final name is whole; a maker that dies leaves a draft that the next one
removes. It does not say what a key must hold: put a digest of the recipe into it.
"""

from __future__ import annotations

import fcntl
import os
import re
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

KEY = re.compile(r"[A-Za-z0-9][A-Za-z0-9._=@+-]{0,199}")
LOCKS, DRAFTS = ".locks", ".drafts"


@dataclass(frozen=True)
class Made:
    """`path`: the directory of the key. `new`: whether this call made it."""

    path: Path
    new: bool


def locked_step(root: Path, key: str, make: Callable[[Path], object]) -> Made:
    """The directory `root/key`, made by `make(draft)` unless it is there. Blocks while another process makes it.

    `make` fills an empty directory on the same file system; what it raises leaves nothing behind. ValueError for a key
    that is no plain file name.
    """
    if not KEY.fullmatch(key):
        raise ValueError(f"key {key!r}: letters, digits and . _ = @ + - only, at most 200, the first no sign")
    target = root / key
    if target.is_dir():
        return Made(target, new=False)
    (root / LOCKS).mkdir(parents=True, exist_ok=True)
    with (root / LOCKS / f"{key}.lock").open("ab") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if target.is_dir():
            return Made(target, new=False)
        draft = root / DRAFTS / key
        shutil.rmtree(draft, ignore_errors=True)  # of a maker that died: the lock says that nobody is at it
        draft.mkdir(parents=True)
        try:
            make(draft)
            settle(draft)
            draft.rename(target)
        except BaseException:
            shutil.rmtree(draft, ignore_errors=True)
            raise
        settle_names(root)
    return Made(target, new=True)


def settle(directory: Path) -> None:
    """The files' content on disk before their directory gets its name."""
    for base, _, names in os.walk(directory):
        for name in names:
            path = Path(base) / name
            if path.is_file() and not path.is_symlink():
                with path.open("rb") as file:
                    os.fsync(file.fileno())
        settle_names(Path(base))


def settle_names(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
