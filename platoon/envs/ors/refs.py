"""Task ids of openreward environments: `<split>:<index>`, an OpenReward reference, or a task's name."""

from __future__ import annotations

import base64
import binascii
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

_INDEXED = re.compile(r"(?P<split>.+):(?P<index>[0-9]+)", re.DOTALL)
_PREFIX = "openreward:v1:"


@dataclass(frozen=True)
class TaskRef:
    """Where a task is listed. `name` is its display name when known."""

    split: str
    index: int
    name: str | None = None

    @property
    def task_id(self) -> str:
        return f"{self.split}:{self.index}"

    def record(self) -> dict[str, Any]:
        return {"split": self.split, "index": self.index, "name": self.name}


def parse_task_id(task_id: str, *, label: str | None = None) -> TaskRef | None:
    """The reference that an id spells out, or None when the id is a task's name.

    ValueError for a malformed OpenReward reference, or one of another environment than `label`.
    """
    if task_id.startswith(_PREFIX):
        return _parse_openreward(task_id, label)
    match = _INDEXED.fullmatch(task_id)
    return TaskRef(match["split"], int(match["index"])) if match else None


def _parse_openreward(task_id: str, label: str | None) -> TaskRef:
    text = task_id.removeprefix(_PREFIX)
    try:
        data = json.loads(base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)))
    except (binascii.Error, ValueError) as error:
        raise ValueError(f"task id {task_id!r} is not a readable OpenReward reference: {error}") from None
    if not isinstance(data, dict) or not {"environment", "index", "split"} <= set(data) <= {
        "environment", "index", "split", "name",
    }:  # fmt: skip
        raise ValueError(f"task id {task_id!r} must hold exactly environment, index, split and optionally name")
    texts = [data["environment"], data["split"], *([data["name"]] if "name" in data else [])]
    if any(not isinstance(text, str) or not text for text in texts):
        raise ValueError(f"task id {task_id!r}: environment, split and name must be non-empty texts")
    index = data["index"]
    if isinstance(index, bool) or not isinstance(index, int) or index < 0:
        raise ValueError(f"task id {task_id!r}: index must be a whole number from 0, not {index!r}")
    if label is not None and data["environment"] != label:
        raise ValueError(f"task id {task_id!r} belongs to environment {data['environment']!r}, not to {label!r}")
    return TaskRef(data["split"], index, data.get("name"))


def task_name(spec: Any, index: int) -> str:
    """A spec's display name: its first non-empty `task_name`, `id`, `task_id` or `name`, else `task-<index>`."""
    if isinstance(spec, Mapping):
        for key in ("task_name", "id", "task_id", "name"):
            if spec.get(key):
                return str(spec[key])
    return f"task-{index}"
