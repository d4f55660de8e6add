"""Labels checked against the listed tasks."""

from __future__ import annotations

import pytest

from platoon.draw.dispatcher import DispatchSettings
from platoon.draw.labels import label_problems, label_warnings, permit_warnings
from platoon.draw.pool import PoolRow, TaskPool


def pool_of(*labels: str | None) -> TaskPool:
    columns = {"level": "x", "topic": ""}
    return TaskPool([PoolRow(f"t{i}", label, label, columns) for i, label in enumerate(labels)])


@pytest.mark.parametrize(
    ("column", "said"),
    [("levl", "did you mean 'level'"), ("colour", "the tasks have level, topic"), ("topic", "its values are empty")],
)
def test_a_column_that_labels_no_task_is_refused(column: str, said: str) -> None:
    assert said in label_problems(pool_of(None, None), column)[0]


def test_tasks_without_labels_are_fine_by_default_or_beside_labelled_ones() -> None:
    assert label_problems(pool_of(None), "_platoon_environment") == []
    assert label_problems(pool_of(None, "a"), "level") == []


def test_doubts_are_named() -> None:
    warnings = label_warnings(pool_of(None, "easy"), "level", ["esay"])
    assert "1 of 2 training tasks have no label" in warnings[0]
    assert "rollout_group_limits.esay: no training task has this label; did you mean 'easy'?" in warnings[1]
    assert label_warnings(pool_of("easy", "hard"), "level", ["easy"]) == []
    twice = TaskPool([PoolRow("t", label="easy"), PoolRow("t", label="easy"), PoolRow("u", label="easy")])
    assert label_warnings(twice, "level", [])[0].startswith("1 of 3 training tasks repeat the id of an earlier one")


def test_limits_that_can_fill_all_permits_are_named() -> None:
    settings = DispatchSettings(4, 2, 1, {"hard": 8}, {"hard": 2})
    pool = pool_of("easy", "hard")
    assert permit_warnings(pool, settings, 18) == []
    assert "set at least 18" in permit_warnings(pool, settings, 17)[0]
