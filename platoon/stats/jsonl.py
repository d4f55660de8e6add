"""JSON lines: one object a line, split on the newline character alone.

Model output holds other characters that Python counts as line ends, so `splitlines` is never used. A line that does not
parse is reported with its number and skipped; it never costs the others.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from platoon.stats.files import sync


@dataclass(frozen=True)
class JsonLines:
    """`rows`: the objects read, in order. `problems`: one sentence for each line left out."""

    rows: list[dict[str, Any]]
    problems: tuple[str, ...] = ()


def read_jsonl(path: Path) -> JsonLines:
    """Read a file; a missing one has no rows."""
    try:
        return _parsed(path, path.read_bytes())
    except (FileNotFoundError, NotADirectoryError):
        return JsonLines([])


def _parsed(path: Path, content: bytes) -> JsonLines:
    rows: list[dict[str, Any]] = []
    problems: list[str] = []
    lines = content.split(b"\n")
    for number, line in enumerate(lines, start=1):
        if not line.strip(b" \t\r"):
            continue
        try:
            row = json.loads(line)
        except ValueError:
            torn = " (cut short: the writer died in it)" if number == len(lines) else ""
            problems.append(f"{path}: line {number} is not JSON{torn}; it is skipped")
            continue
        if isinstance(row, dict):
            rows.append(row)
        else:
            problems.append(f"{path}: line {number} holds {type(row).__name__}, not an object; it is skipped")
    return JsonLines(rows, tuple(problems))


class JsonlTail:
    """Reads a growing file from where it ended last, without lines that do not parse. `skip`: not what it holds now."""

    def __init__(self, path: Path, *, skip: bool = False) -> None:
        self._path = path
        self._at = path.stat().st_size if skip and path.exists() else 0

    def read(self) -> list[dict[str, Any]]:
        """Objects of the lines added since the last call; a last line without its end waits for the next one."""
        try:
            with self._path.open("rb") as file:
                file.seek(self._at)
                content = file.read()
        except FileNotFoundError:
            return []
        whole = content[: content.rfind(b"\n") + 1]
        self._at += len(whole)
        return _parsed(self._path, whole).rows


def append_row(path: Path, row: Mapping[str, Any], *, compact: bool = False) -> None:
    """Append one object and fsync. Starts a new line when the last one lacks its end."""
    path.parent.mkdir(parents=True, exist_ok=True)
    line, new = encode_row(row, compact=compact), not path.exists()
    with path.open("ab+") as file:
        file.write((b"" if ends_whole(path) else b"\n") + line)
        file.flush()
        os.fsync(file.fileno())
    if new:
        sync(path.parent)


def encode_row(row: Mapping[str, Any], *, compact: bool = False) -> bytes:
    """One line of ASCII with its newline. ValueError for NaN and infinity, which JSON does not have."""
    separators = (",", ":") if compact else None
    return json.dumps(dict(row), separators=separators, allow_nan=False).encode() + b"\n"


def ends_whole(path: Path) -> bool:
    """True when the file is missing, empty, or ends with a newline."""
    try:
        with path.open("rb") as file:
            if file.seek(0, os.SEEK_END) == 0:
                return True
            file.seek(-1, os.SEEK_END)
            return file.read(1) == b"\n"
    except FileNotFoundError:
        return True
