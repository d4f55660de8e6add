"""Properties over generated and mutated configurations."""

from __future__ import annotations

import copy
import json
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import pytest
import yaml
from hypothesis import example, given, settings
from hypothesis import strategies as st

from platoon.config import ConfigError, EvalRun, Section, TrainRun, load, workflow_settings
from platoon.config.records import RESOLVED, dump_resolved, to_yaml
from platoon.config.schema import members, section_of

PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**20), 10**20) | st.floats(allow_nan=False) | st.text(max_size=12),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=8,
)
FREE = st.dictionaries(st.text(min_size=1, max_size=6), PLAIN, max_size=3)
NAMES = st.text(st.characters(categories=["L", "N"]), min_size=1, max_size=8)
ENTRIES = st.lists(
    st.fixed_dictionaries(
        {"service": st.just("a:B")},
        optional={
            "service_kwargs": FREE,
            "harness": NAMES | st.dictionaries(NAMES, st.floats(0.1, 9), min_size=1, max_size=3),
            "harness_options": FREE,
            "max_staleness": st.none(),
            "success_threshold": st.floats(-5, 5),
            "workflow_config": st.fixed_dictionaries(
                {}, optional={"group_size": st.integers(1, 8), "rollout_config": st.just({"max_steps": None})}
            ),
        },
    ),
    min_size=1,
    max_size=1,
)
CONFIGS = st.fixed_dictionaries(
    {
        "train": st.fixed_dictionaries(
            {"model_name": NAMES, "renderer_name": NAMES},
            optional={
                "renderer_kwargs": FREE,
                "num_epochs": st.none() | st.integers(1, 5),
                "batch_size": st.integers(1, 64),
                "workflow_config": st.fixed_dictionaries({}, optional={"group_size": st.integers(1, 8)}),
                "loss_fn_config": st.dictionaries(NAMES, st.floats(-1e6, 1e6) | st.just("1e-3"), max_size=3),
                "optimizer": st.fixed_dictionaries({}, optional={"learning_rate": st.floats(0, 1) | st.just("3e-5")}),
            },
        ),
    },
    optional={
        "log_path": NAMES,
        "environments": ENTRIES,
        "eval": st.fixed_dictionaries({}, optional={"every": st.none() | st.integers(0, 9), "at_start": st.booleans()}),
        "stats": st.fixed_dictionaries({}, optional={"wandb": st.just({"api_key": "k-secret", "notes": None})}),
        "tinker_base_url": st.none() | st.just("local"),
    },
)


@settings(max_examples=40, deadline=None)
@given(CONFIGS)
def test_a_resolved_configuration_loads_to_the_same_run(data: dict[str, Any]) -> None:
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "run.yaml"
        path.write_text(yaml.safe_dump(data, allow_unicode=True), encoding="utf-8")
        loaded = load(path)
        first, second = Path(directory) / "a" / RESOLVED, Path(directory) / "b" / RESOLVED
        dump_resolved(loaded, first)
        again = load(first)
        dump_resolved(again, second)
        expected = copy.deepcopy(loaded.data)
        expected["log_path"] = str(Path.cwd() / loaded.train_config.log_path)
        if expected.get("stats", {}).get("wandb"):
            del expected["stats"]["wandb"]["api_key"]
        assert again.data == expected
        assert load(second).data == expected
        assert "k-secret" not in first.read_text(encoding="utf-8")
        assert again.train_config.train == loaded.train_config.train
        assert again.config.environments == loaded.config.environments
        assert given_keys(again.config) == given_keys(loaded.config)
        path.write_text(to_yaml(loaded.config.model_dump(mode="json")), encoding="utf-8")
        written = load(path).train_config
        assert written.model_dump() == loaded.config.model_dump()
        phases: tuple[Literal["train", "eval"], ...] = ("train", "eval")
        for entry, same in zip(written.environments, loaded.config.environments, strict=True):
            for phase in phases:
                assert workflow_settings(written, entry, phase) == workflow_settings(loaded.train_config, same, phase)


def given_keys(config: Any) -> Any:
    """Which keys each section was given, the log path aside."""
    if not hasattr(config, "model_fields_set"):
        return [given_keys(item) for item in config] if isinstance(config, tuple) else None
    keys = config.model_fields_set - {"log_path", "api_key", "eval"}
    return {key: given_keys(getattr(config, key)) for key in sorted(keys)}


def nullable(section: type[Section], path: tuple[str, ...] = ()) -> list[tuple[str, ...]]:
    """The path of every key below a section that may be null; entries of a list count as the first one."""
    found: list[tuple[str, ...]] = []
    for key, field in section.model_fields.items():
        kinds = members(field.annotation)
        below = section_of(field.annotation)
        if type(None) in kinds:
            found.append((*path, key))
        if below is not None:
            found += nullable(below, (*path, key))
        elif get_origin(kinds[0]) is tuple and section_of(get_args(kinds[0])[0]) is not None:
            item = section_of(get_args(kinds[0])[0])
            assert item is not None
            found += nullable(item, (*path, key, "0"))
    return found


NULLABLE = [
    (root, path)
    for root in (TrainRun, EvalRun)
    for path in nullable(root)
    if path[:2] != ("inference", "hosted") or len(path) == 2  # a section of its own, with required keys
]


def test_null_is_found_everywhere() -> None:
    paths = {".".join(path) for _, path in NULLABLE}
    assert len(paths) > 70
    assert {"train.num_epochs", "environments.0.harness", "inference.hosted", "stats.wandb.notes"} <= paths


@pytest.mark.parametrize(("root", "path"), NULLABLE, ids=lambda value: ".".join(value) if type(value) is tuple else "")
def test_null_in_every_key_that_takes_it_survives_the_resolved_file(
    root: type[Section], path: tuple[str, ...], tmp_path: Path
) -> None:
    section = {"train": {"model_name": "m", "renderer_name": "r"}}
    data = section if root is TrainRun else {"inference": {"model_name": "m"}}
    (tmp_path / "run.yaml").write_text(yaml.safe_dump({**data, "environments": [{}]}), encoding="utf-8")
    key = ".".join(path)
    by_text, by_mapping = load(tmp_path / "run.yaml", [f"{key}=null"]), load(tmp_path / "run.yaml", {key: None})
    assert by_text.data == by_mapping.data
    dump_resolved(by_text, tmp_path / "out" / RESOLVED)
    again = load(tmp_path / "out" / RESOLVED)
    value: Any = again.data
    for part in path:
        value = value[int(part) if isinstance(value, list) else part]
    assert value is None
    ours, theirs = again.config.model_dump(), by_text.config.model_dump()
    for dumped in (ours, theirs):
        dumped.pop("log_path", None)
    assert ours == theirs


ODD = st.text(max_size=10) | st.sampled_from(
    ["null", "true", "1e5", "[a]", "a: b", "05", "~", "no", "0x1f", "1:30", "*a"]
)


@settings(max_examples=80, deadline=None)
@example("\x85", "a\x85 b")
@example("\u2028", "\ufeff\t ")
@given(ODD, ODD)
def test_odd_texts_survive_the_resolved_file(note: str, extra: str) -> None:
    values: dict[str, Any] = {
        "stats.wandb.notes": note,
        "train.renderer_kwargs.x": extra,
        "environments.0.exclude_tasks": [f"t{note}t"],
    }
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "run.yaml"
        path.write_text("train: {model_name: m, renderer_name: r}\nenvironments: [{}]\n", encoding="utf-8")
        loaded = load(path, values)
        texts = [f"{key}={json.dumps(value)}" for key, value in values.items() if isinstance(value, str)]
        rest = {key: value for key, value in values.items() if not isinstance(value, str)}
        path.write_text(to_yaml(load(path, rest).data), encoding="utf-8")
        assert load(path, texts).config == loaded.config
        dump_resolved(loaded, Path(directory) / "out" / RESOLVED)
        again = load(Path(directory) / "out" / RESOLVED)
    assert again.train_config.stats.wandb.notes == note
    assert again.train_config.train.renderer_kwargs == {"x": extra}
    assert again.config.environments == loaded.config.environments


BASE: dict[str, Any] = {
    "train": {
        "model_name": "m",
        "renderer_name": "r",
        "batch_size": 8,
        "max_staleness": 2,
        "num_minibatches": 2,
        "optimizer": {"learning_rate": 1e-4},
        "loss_fn_config": {"x": 1},
        "workflow_config": {"group_size": 4, "straggler_timeout_seconds": 3.0, "rollout_config": {"extra": {"a": 1}}},
        "refill": {"max_groups_per_step": 3.0},
    },
    "eval": {"every": 1, "workflow_config": {"group_size": 2}},
    "environments": [
        {"name": "a", "service": "table", "service_kwargs": {"mounts": []}, "harness": {"x": 1}, "weight": 1},
        {
            "name": "b",
            "service": "harbor",
            "service_kwargs": {"task_dirs": ["/t"]},
            "agents": {"verifier": {}},
            "weight": 2,
        },
    ],
    "checkpoint": {"every": 2, "recovery_every": 1},
    "stats": {"wandb": {"tags": ["t"]}},
    "watchdog": {"exit_code": 2},
    "extends": [],
}


def _paths(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    found = [path] if path else []
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in items:
        found += _paths(item, (*path, key))
    return found


WRONG = PLAIN | st.sampled_from(
    [[], {}, [[]], [{}], "1e5", "1e999", "-1", "null", ".toml", "x.toml", ["x.toml"], {"x.toml": 1}, 10**400]
)


def report(path: Path, overrides: Sequence[str] = (), kind: Literal["auto", "train"] = "auto") -> ConfigError | None:
    """The report of a load, or None when it succeeds; anything else that is raised fails the test."""
    try:
        load(path, overrides, kind=kind)
    except ConfigError as error:
        return error
    return None


@settings(max_examples=200, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(_paths(BASE)), st.sampled_from("srd"), WRONG, NAMES), min_size=1, max_size=4))
def test_a_mutated_configuration_loads_or_gives_a_report(mutations: list[tuple[Any, str, Any, str]]) -> None:
    data = copy.deepcopy(BASE)
    for path, kind, value, name in mutations:
        container: Any = data
        try:
            for key in path[:-1]:
                container = container[key]
            if kind == "s":
                container[path[-1]] = value
            elif kind == "d":
                del container[path[-1]]
            else:
                container[name if isinstance(container, dict) else path[-1]] = container[path[-1]]
        except (KeyError, IndexError, TypeError):
            continue
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "run.yaml"
        path.write_text(yaml.safe_dump(data, allow_unicode=True), encoding="utf-8")
        error = report(path, kind="train")
    if error is not None:
        assert error.problems
        assert len(set(error.problems)) == len(error.problems)
        assert str(error).startswith(f"configuration {path}: ")


@settings(max_examples=150, deadline=None)
@given(st.text(st.sampled_from("ab:-[]{}&*!|>'\"#%@`\n\t ,?<0x85\u2028\ufeff"), max_size=40))
def test_any_text_is_a_configuration_or_gives_a_report(text: str) -> None:
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "run.yaml"
        path.write_text(text, encoding="utf-8")
        error = report(path)
    assert error is None or error.problems


@settings(max_examples=200, deadline=None)
@given(
    st.sampled_from([".".join(map(str, path)) for path in _paths(BASE)] + ["train.x", "environments.9", "a..b", ""]),
    st.sampled_from(["=", "+=", ""]),
    st.text(max_size=12)
    | st.sampled_from(["{", "[1, 2]", "{a: b}", '"x"', "1e5", "null", "~", "!!python/x a", "&a *a"]),
)
def test_any_override_loads_or_gives_a_report(key: str, sign: str, value: str) -> None:
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "run.yaml"
        path.write_text(yaml.safe_dump(BASE), encoding="utf-8")
        error = report(path, [key + sign + value])
    assert error is None or error.problems
