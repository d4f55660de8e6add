"""The pool of training rows, in listing order, with each row's entry and label.

Identity is (entry, task id): a mixture's ids read `<entry>::<raw id>`. A repeated id stays a row of its own; the
id's first row stands for it where a task is named by id. Plain records; no sampling happens here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

ENVIRONMENT_COLUMN = "_platoon_environment"


class ListedTask(Protocol):
    """One listed task of an environment: what `list_rows` gives."""

    @property
    def task_id(self) -> str: ...
    @property
    def columns(self) -> Mapping[str, str]: ...


@dataclass(frozen=True, slots=True)
class PoolRow:
    """One row: `entry` is the `environments:` item that listed it, `label` what limits and statistics group by."""

    task_id: str
    entry: str | None = None
    label: str | None = None
    columns: Mapping[str, object] = field(default_factory=dict)


class TaskPool:
    """The run's rows; row indices are places in the listing. ValueError for an empty pool."""

    def __init__(self, rows: Sequence[PoolRow]) -> None:
        if not rows:
            raise ValueError("the training pool is empty: no environment lists a task")
        self.rows = tuple(rows)
        self.first: dict[str, int] = {}
        by_entry: dict[str | None, list[int]] = {}
        for index, row in enumerate(self.rows):
            self.first.setdefault(row.task_id, index)
            by_entry.setdefault(row.entry, []).append(index)
        self.by_entry = {entry: tuple(indices) for entry, indices in by_entry.items()}
        self.labels = tuple(dict.fromkeys(row.label for row in self.rows))
        self.labels_of = {
            entry: tuple(dict.fromkeys(self.rows[index].label for index in indices))
            for entry, indices in self.by_entry.items()
        }

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> PoolRow:
        return self.rows[index]

    @property
    def repeated_ids(self) -> int:
        """Rows whose task id an earlier row already has."""
        return len(self.rows) - len(self.first)

    def task_ids(self, entry: str | None) -> list[str]:
        """Ids of one entry's rows in listing order, repeats kept; [] for an entry without tasks."""
        return [self.rows[index].task_id for index in self.by_entry.get(entry, ())]

    def find(self, task_id: str, saved_index: int | None) -> int | None:
        """The row at `saved_index` if it still holds the task, else the task's first row, else None."""
        known = saved_index is not None and 0 <= saved_index < len(self.rows)
        if saved_index is not None and known and self.rows[saved_index].task_id == task_id:
            return saved_index
        return self.first.get(task_id)


def label_text(value: object) -> str | None:
    """A column's value as a label: bool as true/false, text as is, numbers by `str`; anything else is no label."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return value or None
    if isinstance(value, int | float):
        return str(value)
    return None


def build_pool(listings: Mapping[str, Sequence[ListedTask]], label_by: str = ENVIRONMENT_COLUMN) -> TaskPool:
    """The pool of entries' listings, in the mapping's order (that of the config).

    With several entries, ids become `<entry>::<id>`, every row has the union of all columns (None where its listing
    lacks one) and `_platoon_environment`. A single entry's rows are taken as they are.
    """
    mixture = len(listings) > 1
    union: dict[str, object] = {}
    if mixture:
        union = dict.fromkeys(key for rows in listings.values() for row in rows for key in row.columns)
    pool: list[PoolRow] = []
    for entry, rows in listings.items():
        for row in rows:
            columns: dict[str, object] = {**union, **row.columns}
            if mixture:
                columns[ENVIRONMENT_COLUMN] = entry
            task_id = f"{entry}::{row.task_id}" if mixture else row.task_id
            pool.append(PoolRow(task_id, entry, label_text(columns.get(label_by)), columns))
    return TaskPool(pool)
