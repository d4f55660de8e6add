"""The sampling fingerprint: what decides the order of draws, saved with each checkpoint and compared on resume.

A difference never stops a run; it is named, so that a changed order is no surprise.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from typing import Any

from platoon.draw.pool import TaskPool
from platoon.draw.samplers.registry import SAMPLERS
from platoon.draw.samplers.settings import PLAIN_SAMPLERS, SamplingSettings


def fingerprint(
    settings: SamplingSettings, pool: TaskPool, admission: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """The JSON record. `admission`: the rules, when some entry's rule is not `all`."""
    name = settings.task_sampler
    slots = settings.hands_slots
    own = [entry.label for entry in settings.entries if not entry.plain]
    custom = name not in SAMPLERS.core
    seeds = name == "weighted" or (name == "auto" and len(settings.entries) > 1) or bool(own) or custom
    entries: dict[str, Any] = {}
    for entry in settings.entries:
        ids = pool.task_ids(entry.label)
        record: dict[str, Any] = {"weight": entry.weight, "tasks": len(ids), "pool": pool_digest(ids)}
        if seeds:
            record["seed"] = entry.seed
        if slots and entry.label in own:
            record["task_sampler"] = entry.task_sampler
            record["task_sampler_options"] = _recorded(entry.task_sampler, entry.task_sampler_options)
        entries[entry.label] = record
    found: dict[str, Any] = {
        "task_sampler": name,
        "batch_size": settings.batch_size,
        "label_by": settings.label_by,
        "order": [entry.label for entry in settings.entries],
        "entries": entries,
    }
    if name not in PLAIN_SAMPLERS:
        found["task_sampler_options"] = _recorded(name, settings.task_sampler_options)
    if admission is not None:
        found["admission"] = dict(admission)
    return found


def _recorded(sampler: str | None, options: Mapping[str, Any]) -> dict[str, Any]:
    """Options with their defaults."""
    return SAMPLERS.resolve(sampler).recorded(options) if sampler is not None else dict(options)


def pool_digest(task_ids: Iterable[str]) -> str:
    """16 hex digits over the ids in listing order."""
    return hashlib.sha256("\n".join(task_ids).encode()).hexdigest()[:16]


def fingerprint_changes(saved: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """What differs, one sentence each; [] for the same sampling."""
    changes = [
        f"{key}: {saved.get(key)!r} became {now.get(key)!r}"
        for key in ("task_sampler", "batch_size", "label_by", "task_sampler_options")
        if saved.get(key) != now.get(key)
    ]
    before: Mapping[str, Any] = saved.get("entries", {})
    after: Mapping[str, Any] = now.get("entries", {})
    changes += [f"environment {label!r} left" for label in before if label not in after]
    changes += [f"environment {label!r} joined" for label in after if label not in before]
    common = [label for label in saved.get("order", []) if label in after]
    if common != [label for label in now.get("order", []) if label in before]:
        changes.append("the order of the environments changed")
    for label in common:
        changes += [f"environment {label!r}: {change}" for change in _entry_changes(before[label], after[label])]
    return changes + _admission_changes(saved.get("admission"), now.get("admission"), common)


def _entry_changes(saved: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    changes = [
        f"{key} {saved[key]!r} became {now[key]!r}"
        for key in ("weight", "seed")
        if key in saved and key in now and saved[key] != now[key]
    ]
    for key, missing in (("task_sampler", "uniform"), ("task_sampler_options", {})):
        old, new = saved.get(key, missing), now.get(key, missing)
        if old != new:
            changes.append(f"{key} {old!r} became {new!r}")
    if saved.get("tasks") != now.get("tasks"):
        changes.append(f"{saved.get('tasks')} tasks became {now.get('tasks')}")
    elif saved.get("pool") != now.get("pool"):
        changes.append(f"same count of {now.get('tasks')} tasks, but other tasks")
    return changes


def _admission_changes(
    saved: Mapping[str, Any] | None, now: Mapping[str, Any] | None, common: Iterable[str]
) -> list[str]:
    changes: list[str] = []
    if saved and now and saved.get("max_groups_per_step") != now.get("max_groups_per_step"):
        changes.append(
            f"refill.max_groups_per_step {saved.get('max_groups_per_step')} became {now.get('max_groups_per_step')}"
        )
    nothing = {"rule": "all", "options": {}}
    for label in common:
        old = (saved or {}).get("entries", {}).get(label, nothing)
        new = (now or {}).get("entries", {}).get(label, nothing)
        if old != new:
            changes.append(f"environment {label!r}: group_admission {old} became {new}")
    return changes
