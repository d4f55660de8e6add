from __future__ import annotations

import pickle
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from platoon.config import ConfigError, EnvironmentConfig, add_project_path, load
from platoon.envs.listing import TaskRow
from platoon.envs.named import NamedEnvironments
from platoon.rollout.route import Route, build_route, draw_harness

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
COUNTING = "python://tests.envs.worlds:Counting"


def entry(**keys: Any) -> EnvironmentConfig:
    return EnvironmentConfig.model_validate({"service": COUNTING, "harness": "platoon-react", **keys})


def test_a_route_carries_what_the_entry_says() -> None:
    route = build_route(entry(name="math", harness_options={"a": 1}, on_harness_exit="grade"), "train", "train:0")
    assert (route.label, route.harness.ref, route.program) == ("math", "platoon-react@1", "single")
    assert route.harness_options == {"a": 1}
    assert route.on_harness_exit.crash == "grade"
    assert route.service.name == "Counting"


def test_evaluation_lays_its_own_options_over() -> None:
    made = entry(harness_options={"a": 1, "b": {"c": 2}}, eval_overrides={"harness_options": {"b": {"d": 3}}})
    assert build_route(made, "train").harness_options == {"a": 1, "b": {"c": 2}}
    assert build_route(made, "eval").harness_options == {"a": 1, "b": {"c": 2, "d": 3}}


def test_all_problems_come_in_one_report() -> None:
    with pytest.raises(ConfigError) as error:
        build_route(
            entry(name="m", service="harbor", harness={"platoon-react": 1, "nope": 1, "x.toml": 2}, program="nowhere"),
            "train",
        )
    assert [problem.split(":")[0] for problem in error.value.problems] == [
        "environments[m].service",
        "environments[m].harness",
        "environments[m].harness",
        "environments[m].program",
    ]


def test_a_package_that_does_not_import_is_named() -> None:
    with pytest.raises(ConfigError, match=r"environments\[default\]\.package: 'no_such_package'"):
        build_route(entry(package="no_such_package"), "train")


def test_a_mixture_draws_by_weight_from_the_task_alone() -> None:
    weights = {"platoon-react": 3.0, "platoon-noop": 1.0}
    mixed = entry(harness=weights)
    drawn = [draw_harness(mixed, f"train:{index}") for index in range(2000)]
    share = Counter(drawn)["platoon-react"] / 2000
    assert 0.71 < share < 0.79
    again = entry(harness=dict(reversed(weights.items())))
    assert drawn == [draw_harness(again, f"train:{index}") for index in range(2000)]
    assert drawn != [draw_harness(entry(harness=weights, seed=1), f"train:{index}") for index in range(2000)]
    assert build_route(mixed, "train", "train:5").harness.name == drawn[5]


def test_the_draw_is_this_one() -> None:
    # first 8 bytes of SHA-256("0:train:<i>") as a share of the summed weights, names in order
    mixed = entry(harness={"b": 1.0, "a": 1.0})
    assert [draw_harness(mixed, f"train:{index}") for index in range(6)] == GOLDEN


GOLDEN = ["a", "a", "a", "b", "a", "a"]


def test_a_lazy_mixture_keeps_each_rows_own_environment() -> None:
    entries = [entry(name="math"), entry(name="code", harness="platoon-noop")]
    rows = {"math": [TaskRow("train:0"), TaskRow("train:1")], "code": [TaskRow("train:0"), TaskRow("test:0")]}

    def routed() -> Iterator[tuple[Route, TaskRow]]:
        for made in entries:
            for row in rows[made.label]:
                yield build_route(made, "train", row.task_id), row

    pairs = pickle.loads(pickle.dumps(list(routed())))
    assert [route.label for route, _ in pairs] == ["math", "math", "code", "code"]
    assert [route.harness.name for route, _ in pairs] == ["platoon-react"] * 2 + ["platoon-noop"] * 2
    assert [row.task_id for _, row in pairs] == ["train:0", "train:1", "train:0", "test:0"]


@pytest.mark.parametrize(
    "name", ["quickstart/train", "quickstart/local", "number-search/train", "number-search/local", "number-search/eval"]
)
def test_the_shipped_examples_load_and_route(name: str) -> None:
    loaded = load(EXAMPLES / f"{name}.yaml", resolver=NamedEnvironments())
    add_project_path(loaded)
    for made in loaded.config.environments:
        route = build_route(made, "train" if loaded.kind == "train" else "eval")
        assert route.harness.ref in ("example-guesser@1", "platoon-react@1")
