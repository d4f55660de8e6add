"""Checks of labels and their limits against the listed tasks: what a config cannot know before they are listed.

Pure: a pool and numbers in, sentences out.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from platoon.config.problems import nearest
from platoon.draw.dispatcher import DispatchSettings
from platoon.draw.pool import ENVIRONMENT_COLUMN, TaskPool


def label_problems(pool: TaskPool, column: str) -> list[str]:
    """Why the tasks cannot be labelled by `column`; [] when some can, and for the default column."""
    if column == ENVIRONMENT_COLUMN or any(row.label is not None for row in pool.rows):
        return []
    columns = sorted({name for row in pool.rows for name in row.columns if name != ENVIRONMENT_COLUMN})
    if column in columns:
        return [f"train.label_by: column {column!r} gives no training task a label: its values are empty"]
    close = nearest(column, columns)
    hint = f"did you mean {close!r}?" if close else f"the tasks have {', '.join(columns) or 'no columns'}"
    return [f"train.label_by: no training task has a column {column!r}; {hint}"]


def label_warnings(pool: TaskPool, column: str, limits: Iterable[str]) -> list[str]:
    """Tasks listed twice, tasks without a label beside labelled ones, and limits of labels that no task has."""
    warnings: list[str] = []
    if pool.repeated_ids:
        warnings.append(
            f"{pool.repeated_ids} of {len(pool)} training tasks repeat the id of an earlier one: the statistics count "
            "them as one task, and samplers that draw by id draw the first; give each its own id"
        )
    bare = sum(row.label is None for row in pool.rows)
    if 0 < bare < len(pool):
        warnings.append(f"train.label_by: {bare} of {len(pool)} training tasks have no label in column {column!r}")
    known = [label for label in pool.labels if label is not None]
    for label in limits:
        if label not in known:
            close = nearest(label, known)
            hint = f"; did you mean {close!r}?" if close else ""
            warnings.append(f"train.rollout_group_limits.{label}: no training task has this label{hint}")
    return warnings


def permit_warnings(pool: TaskPool, settings: DispatchSettings, permits: int) -> list[str]:
    """Labels at their limits that can hold every permit, so that no other group starts."""
    largest: dict[str | None, int] = {}
    for label, entry in {(row.label, row.entry) for row in pool.rows}:
        largest[label] = max(largest.get(label, 0), settings.size_of(entry))
    capped: Mapping[str, int] = {label: cap for label, cap in settings.limits.items() if label in largest}
    if not capped:
        return []
    others = max((size for label, size in largest.items() if label not in capped), default=0)
    needed = sum(cap * largest[label] for label, cap in capped.items()) + others
    if permits >= needed:
        return []
    return [
        f"train.max_concurrent_rollouts: groups of {', '.join(sorted(capped))} can hold all {permits} permits; "
        f"set at least {needed}, or lower train.rollout_group_limits"
    ]
