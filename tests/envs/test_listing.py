from __future__ import annotations

import asyncio
import random
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from platoon.config import ConfigError, EnvironmentConfig
from platoon.envs.contract import EnvNotPrepared, EnvSession, EnvSetupError
from platoon.envs.listing import Listing, TaskRow, list_entry, list_rows
from platoon.rollout.trajectory import Task

SPLITS = {"train": [f"t{i}" for i in range(8)], "eval": ["e0", "e1"], "extra": ["x0"]}


class Shelf:
    """A service over fixed splits; `checked` records what was asked to be checked."""

    name = "shelf"

    def __init__(self, splits: Mapping[str, list[str]] = SPLITS, columns: Mapping[str, Any] | None = None) -> None:
        self.splits = splits
        self.columns = columns or {}
        self.checked: list[tuple[str, list[str]]] = []
        self.listed: list[str] = []

    async def list_tasks(self, split: str) -> list[str]:
        self.listed.append(split)
        if split not in self.splits:
            raise EnvSetupError("env_config", f"no split {split!r}")
        return list(self.splits[split])

    async def list_splits(self) -> list[str]:
        return list(self.splits)

    async def list_task_names(self, split: str) -> dict[str, str]:
        return {task: f"name of {task}" for task in self.splits[split]}

    async def check_tasks(self, split: str, task_ids: list[str]) -> None:
        self.checked.append((split, task_ids))

    async def task_columns(self, task_ids: list[str]) -> dict[str, dict[str, Any]]:
        return {task: dict(self.columns) for task in task_ids}

    async def get_task(self, task_id: str) -> Task:
        return Task(id=task_id)

    async def open(self, task: Task, *, rollout_id: str) -> EnvSession:
        raise EnvSetupError("env_setup", "nothing to play")


def entry(**keys: Any) -> EnvironmentConfig:
    return EnvironmentConfig.model_validate({"service": "x:y", "harness": "platoon-react", **keys})


async def ids(service: Shelf, phase: Any = "train", **keys: Any) -> list[str]:
    return [row.task_id for row in await list_rows(entry(**keys), phase, service)]


async def test_a_phase_lists_its_own_split_unless_the_entry_names_others() -> None:
    assert await ids(Shelf()) == SPLITS["train"]
    assert await ids(Shelf(), "eval") == SPLITS["eval"]
    assert await ids(Shelf(), "eval", eval_dataset_kwargs={"split_name": "extra"}) == ["x0"]
    rows = await list_rows(entry(), "eval", Shelf(), split="extra")
    assert rows == [TaskRow("x0")]


async def test_a_repeated_split_is_listed_once_and_its_tasks_come_twice() -> None:
    service = Shelf()
    assert await ids(service, dataset_kwargs={"split_name": ["eval", "extra", "eval"]}) == [
        "e0",
        "e1",
        "x0",
        "e0",
        "e1",
    ]
    assert service.listed == ["eval", "extra"]


@settings(max_examples=50, deadline=None)
@given(st.integers(0, 50), st.sets(st.sampled_from(SPLITS["train"]), max_size=7), st.integers(1, 8))
def test_excluding_tasks_moves_no_other(seed: int, excluded: set[str], limit: int) -> None:
    kwargs = {"shuffle_seed": seed}
    everything = asyncio.run(ids(Shelf(), dataset_kwargs=kwargs))
    expected = list(SPLITS["train"])
    random.Random(seed).shuffle(expected)
    assert everything == expected
    some = asyncio.run(ids(Shelf(), dataset_kwargs={**kwargs, "limit": limit}, exclude_tasks=sorted(excluded)))
    assert some == [task for task in expected if task not in excluded][:limit]


async def test_tasks_are_excluded_by_name_and_only_kept_ones_are_checked() -> None:
    service = Shelf()
    listing: Listing = await list_entry(entry(exclude_tasks=["name of t3", "t0"]), "train", service)
    kept = [task for task in SPLITS["train"] if task not in ("t0", "t3")]
    assert [row.task_id for row in listing.rows] == kept
    assert service.checked == [("train", kept)]
    assert listing.excluded == {"train": (8, ("t0", "t3"))}


async def test_a_task_of_another_split_may_be_excluded_without_effect() -> None:
    assert await ids(Shelf(), exclude_tasks=["e0"]) == SPLITS["train"]


@pytest.mark.parametrize(
    ("keys", "text"),
    [
        ({"exclude_tasks": ["nothing"]}, "'nothing'.*'t0'"),
        ({"exclude_tasks": ["math::t0"]}, "without its environment's name"),
        ({"exclude_tasks": SPLITS["train"]}, "leaves no task"),
        ({"dataset_kwargs": {"split_nam": "x"}}, "did you mean"),
        ({"dataset_kwargs": {"shuffle_seed": True}}, "shuffle_seed"),
        ({"dataset_kwargs": {"split_name": []}}, "split_name"),
        ({"dataset_kwargs": {"limit": 0}}, "limit"),
        ({"dataset_kwargs": {"split_name": "nowhere"}}, "no split 'nowhere'"),
    ],
)
async def test_what_is_wrong_is_a_config_error_that_names_the_entry(keys: dict[str, Any], text: str) -> None:
    with pytest.raises(ConfigError, match=text) as error:
        await ids(Shelf(), name="math", **keys)
    assert str(error.value).startswith("environments[math]")


async def test_columns_are_texts_and_reserved_or_empty_ones_are_dropped() -> None:
    columns = {"level": 3, "hard": True, "task_id": "z", "_platoon_x": "z", "tags": ["a"], "none": None, "empty": ""}
    rows = await list_rows(entry(), "train", Shelf(columns=columns))
    assert rows[0].columns == {"level": "3", "hard": "true"}


async def test_what_prepare_makes_and_other_failures_go_through() -> None:
    class Unprepared(Shelf):
        async def check_tasks(self, split: str, task_ids: list[str]) -> None:
            raise EnvNotPrepared("run platoon prepare")

    class Down(Shelf):
        async def list_tasks(self, split: str) -> list[str]:
            raise EnvSetupError("env_connect", "no answer")

    with pytest.raises(EnvNotPrepared):
        await ids(Unprepared())
    with pytest.raises(EnvSetupError, match="no answer"):
        await ids(Down())
