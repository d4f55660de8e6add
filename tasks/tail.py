"""New rows of files that a run appends to: each complete line once, however the file grew in between."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any


class Tail:
    """Reads a JSONL file from where it ended last. Lines that do not parse are the file's owner's to report."""

    def __init__(self, path: Path, *, skip: bool) -> None:
        """`skip`: leave out what the file holds now."""
        self._path = path
        self._offset = path.stat().st_size if skip and path.exists() else 0

    def rows(self) -> list[dict[str, Any]]:
        """Rows since the last call; a last line without its end waits for the next one."""
        try:
            with self._path.open("rb") as file:
                file.seek(self._offset)
                content = file.read()
        except FileNotFoundError:
            return []
        whole = content.rfind(b"\n") + 1
        self._offset += whole
        found = []
        for line in content[:whole].split(b"\n"):
            try:
                row = json.loads(line) if line.strip() else None
            except ValueError:
                continue
            if isinstance(row, dict):
                found.append(row)
        return found
