"""Reading files, extends, strict types, one report, removed and unbuilt keys."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from platoon.config import ConfigError, Loaded, load, run_directory
from platoon.config.unbuilt import ENTRIES, EVAL, TRAIN

from .conftest import MINIMAL, Write

TRAINING: dict[str, Any] = MINIMAL["train"]
HEAVY = ("torch", "tinker", "prefect", "openreward", "polars", "wandb", "pyarrow", "numpy", "fastapi")


def refuse(path: Path, *overrides: str) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        load(path, overrides)
    assert caught.value.heading is not None
    assert str(path) in caught.value.heading
    return caught.value.problems


def test_the_defaults(write: Write) -> None:
    loaded = load(write(MINIMAL))
    config = loaded.train_config
    assert (loaded.kind, loaded.data, loaded.sources) == ("train", MINIMAL, (loaded.path,))
    assert (config.train.batch_size, config.train.max_concurrent_rollouts, config.train.max_staleness) == (
        32,
        256,
        None,
    )
    assert (config.train.label_by, config.train.task_sampler) == ("_platoon_environment", "auto")
    assert (config.eval.every, config.eval.max_concurrent_rollouts, config.checkpoint.every) == (0, 256, 0)
    assert config.train.loss_fn_config == {"clip_low_threshold": 0.0, "clip_high_threshold": 5.0}
    assert len(config.environments) == 1
    assert run_directory(config) == Path.cwd() / "runs" / "platoon_tinker" / "run"
    cadence = load(write({**MINIMAL, "eval": {"strategy": "epoch"}, "checkpoint": {"every": 3}})).train_config
    assert (cadence.eval.interval(5), cadence.checkpoint.interval(5)) == (5, 3)


def test_one_report_of_all_files_with_path_and_line(write: Write) -> None:
    write("train:\n  model_name: m\n  batch_sise: 3\n  batch_size: 2.0\n", "base/base.yaml")
    path = write(
        "extends: base/base.yaml\n"
        "train:\n  task_order: random\n  num_epochs: yes\n  num_minibatches: 5\n"
        "eval:\n  every: -1\n"
        "environments:\n  - harness: x\n  - {name: b, seed: '1'}\n"
    )
    base = path.parent / "base" / "base.yaml"
    assert sorted(refuse(path, "watchdog.exit_code=900")) == sorted(
        [
            f"train.renderer_name: missing; it has no default ({path}:2)",
            f"train.batch_sise: unknown key; did you mean train.batch_size? ({base}:3)",
            f"train.batch_size: must be an integer; got 2.0 ({base}:4)",
            f"train.task_order: unknown key; platoon 0.4.0 removed it; use train.task_sampler ({path}:3)",
            f"train.num_epochs: must be an integer; got true ({path}:4)",
            f"eval.every: must be at least 0; got -1 ({path}:7)",
            f"environments.0.harness: needs a service (or env) to play ({path}:9)",
            f"environments.0.name: each entry of a mixture needs a name ({path}:9)",
            f'environments.1.seed: must be an integer; got "1" ({path}:10)',
            "watchdog.exit_code: must be between 0 and 255; got 900 (override watchdog.exit_code=900)",
        ]
    )


def test_a_rule_about_a_refused_value_is_not_reported(write: Write) -> None:
    (only,) = refuse(write({"train": {**TRAINING, "batch_size": "x", "num_minibatches": 5}}))
    assert "train.batch_size: must be an integer" in only


def test_extends_merges_mappings_and_replaces_the_rest(write: Write) -> None:
    write(
        {"train": {**TRAINING, "optimizer": {"beta1": 0.5, "beta2": 0.6}}, "environments": [{"seed": 1}, {}]}, "a.yaml"
    )
    write({"train": {"optimizer": {"beta1": 0.7}, "num_epochs": 3}}, "b.yaml")
    middle = write({"extends": ["a.yaml", "b.yaml"]}, "middle.yaml")
    path = write({"extends": ["middle.yaml", "b.yaml"], "train": {"num_epochs": None}, "environments": [{"seed": 2}]})
    loaded = load(path)
    assert [source.name for source in loaded.sources] == ["a.yaml", "b.yaml", "middle.yaml", "run.yaml"]
    merged = loaded.train_config.train.optimizer
    assert (merged.beta1, merged.beta2) == (0.7, 0.6)
    assert loaded.train_config.train.num_epochs is None
    assert [entry.seed for entry in loaded.config.environments] == [2]
    assert "extends" not in loaded.data
    assert middle.is_file()


def test_extends_that_leads_nowhere(write: Write) -> None:
    write({"extends": "run.yaml"}, "other.yaml")
    (circle,) = refuse(write({"extends": "other.yaml", **MINIMAL}))
    assert "in a circle" in circle
    assert "run.yaml -> " in circle
    (missing,) = refuse(write("train: {}\nextends: nope.yaml\n"))
    assert missing.startswith("extends: no such file: ")
    assert missing.endswith("run.yaml:2)")
    (bad,) = refuse(write({"extends": 3}))
    assert "must be a path or a list of paths; got 3" in bad


@pytest.mark.parametrize(
    ("text", "reason", "line"),
    [
        ("train: [", "is not YAML", 1),
        ("- a\n", "the file must hold a mapping", 1),
        ("train:\n  a: 1\n  b: 2\n  a: 3\n", "train.a: is already set in line 2; keep one", 4),
        ("train:\n  on: 1\n", "the key true is not text; quote it", 2),
        ("train: &x\n  y: *x\n", "an alias of a section inside itself", 1),
        ("train: !!set {a}\n", "the YAML tag", 1),
        ("train: !!python/object:os.system {}\n", "the YAML tag", 1),
        ("train: \t- x\n\ty", "is not YAML", 1),
    ],
)
def test_a_file_that_is_no_plain_yaml(write: Write, text: str, reason: str, line: int) -> None:
    path = write(text)
    assert any(reason in problem and f"{path}:{line}" in problem for problem in refuse(path)), refuse(path)


def test_an_absent_or_binary_file(tmp_path: Path) -> None:
    assert "cannot be read" in refuse(tmp_path / "none.yaml")[0]
    (tmp_path / "b.yaml").write_bytes(b"\xff\xfe\x00a")
    assert "cannot be read" in refuse(tmp_path / "b.yaml")[0]
    assert "cannot be read" in refuse(tmp_path)[0]


def test_yaml_anchors_merge_keys_and_dates(write: Write) -> None:
    train = "train:\n  model_name: 2024-01-01\n  renderer_name: r\n  optimizer: "
    assert any("x-: unknown key" in problem for problem in refuse(write("x-: &o {eps: 1}\n" + train + "{<<: *o}\n")))
    loaded = load(write(train + "{<<: {eps: 1e-7, beta1: 0.5}, beta1: 0.6}\n"))
    assert loaded.train_config.train.model_name == "2024-01-01"
    assert loaded.train_config.train.optimizer.eps == 1e-7
    assert loaded.train_config.train.optimizer.beta1 == 0.6


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("train.batch_size", True),
        ("train.batch_size", 1.0),
        ("train.batch_size", "1"),
        ("train.batch_size", None),
        ("train.batch_size", 0),
        ("train.optimizer.eps", True),
        ("train.optimizer.eps", "x"),
        ("train.optimizer.eps", float("nan")),
        ("train.optimizer.eps", float("inf")),
        ("train.model_name", 3),
        ("train.model_name", " "),
        ("train.workflow_config.filter_errors", 1),
        ("train.workflow_config.filter_errors", "true"),
        ("train.workflow_config", []),
        ("train.permit_release", "never"),
        ("train.refill.max_groups_per_step", None),
        ("train.refill.max_groups_per_step", 0.5),
        ("train.workflow_config.subagent_datum_keep_probability", 1.5),
        ("train.workflow_config.straggler_quorum", 2),
        ("train.workflow_config.min_successful_group_size", 9),
        ("train.workflow_config.worker_preload", ["a b"]),
        ("train.max_concurrent_rollouts", 7),
        ("eval.max_concurrent_rollouts", 0),
        ("eval.workflow_config.group_size", 300),
        ("eval.workflow_config.min_successful_group_size", 2),
        ("environments.0.weight", 0),
        ("environments.0.weight", "many"),
        ("environments.0.weight", True),
        ("environments.0.harness", {}),
        ("environments.0.harness", {"a": 0}),
        ("environments.0.name", "a::b"),
        ("environments.0.exclude_tasks", [" a"]),
        ("environments.0.on_harness_exit", "maybe"),
        ("environments.0.max_staleness", -1),
        ("checkpoint.load_checkpoint_path", "/tmp/x"),
        ("stats.experiment_name", "../x"),
        ("stats.trial_name", "/x"),
        ("tinker_base_url", "ftp://x"),
        ("orchestration", "maybe"),
        ("stats.wandb.tags", "a"),
        ("log_path", None),
    ],
)
def test_a_refused_value_is_named(write: Write, key: str, value: object) -> None:
    path = write({**MINIMAL, "environments": [{}]})
    with pytest.raises(ConfigError) as caught:
        load(path, {key: value})
    assert all(problem.startswith(key) for problem in caught.value.problems), caught.value.problems


def test_accepted_forms(write: Write) -> None:
    entry = {
        "service": "x:Y",
        "harness": {"a": "1e0", "b": 2},
        "weight": "1e-1",
        "on_harness_exit": "grade",
        "exclude_tasks": ["b", "a", "b"],
    }
    text = "train: {model_name: m, renderer_name: r, optimizer: {learning_rate: 3e-5}, loss_fn_config: {x: 1e-3}}\n"
    loaded = load(write(text), {"environments": [entry]})
    assert loaded.train_config.train.optimizer.learning_rate == 3e-5
    assert loaded.train_config.train.loss_fn_config == {"x": 1e-3}
    (built,) = loaded.config.environments
    assert built.harness == {"a": 1.0, "b": 2.0}
    assert built.weight == 0.1
    assert (built.on_harness_exit.timeout, built.on_harness_exit.crash) == ("grade", "grade")
    assert built.exclude_tasks == ("b", "a")
    assert load(write(text), ["environments=[{on_harness_exit: exclude}]", "environments.0.on_harness_exit=grade"]).data


def test_the_kind_of_a_file(write: Write) -> None:
    evaluation = {"inference": {"model_name": "m"}}
    assert load(write(evaluation)).kind == "eval"
    assert load(write({}), ["train.model_name=m", "train.renderer_name=r"]).kind == "train"
    assert "neither a train section" in refuse(write({"environments": []}))[0]
    (both,) = refuse(write({**MINIMAL, **evaluation}))
    assert "train: unknown key; a file with inference is an evaluation config" in both
    with pytest.raises(ConfigError, match="train: missing"):
        load(write({"environments": []}), kind="train")
    with pytest.raises(ConfigError, match="is a training config"):
        _ = load(write(MINIMAL)).eval_config


@pytest.mark.parametrize(
    ("content", "overrides", "kind", "text"),
    [
        (MINIMAL, [], "eval", "is a training config (it has the section train); run it with: platoon train"),
        (MINIMAL, ["inference.model_name=m"], "train", None),
        (
            {"inference": {"model_name": "m", "typo": 1}},
            ["train.batch_size=x"],
            "train",
            "is an evaluation config (it has the section inference); run it with: platoon eval",
        ),
    ],
)
def test_a_file_for_the_other_command_is_one_line_that_names_it(
    write: Write, content: object, overrides: list[str], kind: Any, text: str | None
) -> None:
    path = write(content, "my run.yaml")
    with pytest.raises(ConfigError) as caught:
        load(path, overrides, kind=kind)
    if text is None:
        assert "inference: unknown key" in caught.value.problems[0]
    else:
        assert str(caught.value) == f"{path} {text} '{path}'"


@pytest.mark.parametrize("row", [*TRAIN, *ENTRIES], ids=lambda row: row.key)
def test_a_key_that_is_not_built_is_refused_and_its_default_is_not(write: Write, row: Any) -> None:
    key = row.key.replace("*", "0")
    path = write({**MINIMAL, "environments": [{}]})
    assert isinstance(load(path, {key: row.accepts[0]}), Loaded)
    with pytest.raises(ConfigError) as caught:
        load(path, {key: _other(row.accepts[0], row.key)})
    assert any(problem.startswith(key) and "is not built yet" in problem for problem in caught.value.problems), (
        caught.value.problems
    )


def _other(default: Any, key: str) -> Any:
    """A valid value that is not the default."""
    last = key.rpartition(".")[2]
    special: dict[str, Any] = {
        "rollout_isolation": "process",
        "worker_start_method": "exec",
        "group_admission": "informative",
        "task_sampler": "pass_rate",
        "schedule": "cosine",
        "budget": "depth_aware",
        "child_grading": "env",
        "child_access": "read_only",
        "fork": "copy",
        "worker_preload": ["a"],
        "rollout_group_limits": {"a": 1},
        "label_by": "x",
        "workflow": "x:Y",
        "straggler_policies": {"a": {"timeout_seconds": 1}},
        "propagate_root_success": True,
        "min_ratio": 0.5,
        "placement": "local",
        "builtins": "keep",
        "access": "full",
    }
    if last in special:
        return special[last]
    if isinstance(default, bool):
        return not default
    if isinstance(default, (int, float)):
        return default + 1
    if isinstance(default, dict):
        return {"a": 1}
    return "x:Y" if key.startswith("environments.*.") and "agents" not in key else 2


@pytest.mark.parametrize("row", EVAL, ids=lambda row: row.key)
def test_unbuilt_evaluation_keys(write: Write, row: Any) -> None:
    path = write({"inference": {"model_name": "m"}, "environments": [{"service": "a:B"}]})
    key = row.key.replace("*", "0")
    assert load(path, {key: row.accepts[0]}).kind == "eval"
    value = {"base_url": "http://h/v1"} if row.key == "inference.hosted" else _other(row.accepts[0], row.key)
    with pytest.raises(ConfigError, match=f"{key}: .* is not built yet"):
        load(path, {key: value})


LONG = "x" * 300


@pytest.mark.parametrize("name", ["~no-such-user/x", LONG, "a\0b", "/" + LONG])
def test_a_path_that_no_file_can_have_is_reported(write: Write, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert refuse(write({**MINIMAL, "extends": name}))[0].startswith("extends: ")
    entry = {"service": "table", "service_kwargs": {"path": name}}
    if not name.startswith("/"):
        (problem,) = refuse(write({**MINIMAL, "environments": [entry]}))
        assert problem.startswith("environments.0.service_kwargs.path: no such file or directory: ")
    if "\0" in name or "~" in name:
        assert "log_path: " in refuse(write({**MINIMAL, "log_path": name}))[0]
        assert "output_dir: " in refuse(write({"inference": {"model_name": "m", "output_dir": name}}))[0]
    if "\0" not in name:
        assert "cannot be read: " in refuse_path(name)
        monkeypatch.setenv("PLATOON_SITE", name)
        assert "which is not a file" in refuse(write(MINIMAL))[0]


def refuse_path(name: str) -> str:
    with pytest.raises(ConfigError) as caught:
        load(name)
    return caught.value.problems[0]


def test_paths_are_relative_to_the_file_that_names_them(write: Write) -> None:
    base = write(
        {**MINIMAL, "environments": [{"service": "table", "service_kwargs": {"path": "d/x.jsonl"}}]}, "a/base.yaml"
    )
    (base.parent / "d").mkdir()
    (base.parent / "d" / "x.jsonl").write_text("{}")
    path = write({"extends": "a/base.yaml"})
    kwargs = load(path).config.environments[0].service_kwargs
    assert kwargs == {"path": str(base.parent / "d" / "x.jsonl")}
    (base.parent / "d" / "x.jsonl").unlink()
    (problem,) = refuse(path)
    assert problem.startswith("environments.0.service_kwargs.path: no such file")


def test_a_resolver_expands_env_and_its_errors_are_reported(write: Write) -> None:
    class Named:
        def expand(self, entry: dict[str, Any]) -> dict[str, Any]:
            if entry["env"] != "known":
                raise ValueError(f"there is no environment {entry['env']}")
            return {"service": "x:Y", "seed": 1, **entry, "env": "known@1"}

    path = write({**MINIMAL, "environments": [{"env": "known", "seed": 2}]})
    (entry,) = load(path, resolver=Named()).config.environments
    assert (entry.env, entry.service, entry.seed) == ("known@1", "x:Y", 2)
    with pytest.raises(ConfigError, match=r"environments\.0\.env: there is no environment other \(override"):
        load(path, ["environments.0.env=other"], resolver=Named())


def test_recovery_checkpoints_need_a_staleness_bound(write: Write) -> None:
    (problem,) = refuse(write({**MINIMAL, "checkpoint": {"keep_recovery": 2}}))
    assert problem.startswith("checkpoint.keep_recovery: needs train.max_staleness")


def test_importing_the_configuration_is_light() -> None:
    code = f"import platoon.config, sys; print([name for name in {HEAVY!r} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
