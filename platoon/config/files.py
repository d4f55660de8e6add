"""Writing a file of the run directory in one step."""

from __future__ import annotations

import os
from pathlib import Path


def write_text(text: str, path: Path) -> None:
    """Replace a file in one step, its content on disk before its name."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    with partial.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    partial.replace(path)
