"""Container images that a job pulled before the run, recorded in its lock file.

`PLATOON_IMAGE_PULLS` names a JSONL file; each line holds `reference`, `path`, `sha256` and `manifest_digest`.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from platoon.config.problems import ConfigError, show

VARIABLE = "PLATOON_IMAGE_PULLS"
_KEYS = ("reference", "path", "sha256", "manifest_digest")
_PATTERNS = {"sha256": re.compile(r"[0-9a-f]{64}"), "manifest_digest": re.compile(r"sha256:[0-9a-f]{64}")}


def image_pulls(environ: Mapping[str, str] = os.environ) -> list[dict[str, Any]] | None:
    """The recorded pulls; None when the variable is not set. ConfigError names every line that is no record."""
    named = environ.get(VARIABLE)
    if not named:
        return None
    try:
        lines = Path(named).read_text(encoding="utf-8").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{VARIABLE}: {named} cannot be read: {error}") from error
    problems: list[str] = []
    pulls = []
    for number, line in enumerate(lines, start=1):
        if line.strip():
            record, problem = _record(line)
            pulls.append(record)
            problems += [f"{VARIABLE}: {named}:{number}: {problem}"] if problem else []
    if not pulls:
        problems.append(f"{VARIABLE}: {named} holds no record of a pull")
    if problems:
        raise ConfigError(problems)
    return pulls


def _record(line: str) -> tuple[dict[str, Any], str | None]:
    try:
        record = json.loads(line)
    except ValueError as error:
        return {}, f"is not JSON: {error}"
    if not isinstance(record, dict):
        return {}, f"is no record; got {show(record)}"
    for key in _KEYS:
        value = record.get(key)
        if key == "manifest_digest" and value is None and key in record:
            continue
        if not isinstance(value, str) or not value:
            return record, f"{key}: must be text; got {show(value)}"
        if key in _PATTERNS and not _PATTERNS[key].fullmatch(value):
            return record, f"{key}: must be a SHA-256 in hexadecimal; got {show(value)}"
    return {key: record[key] for key in _KEYS}, None
