"""`config show | validate` of files that are no whole run, of schemas of one's own, of deprecated keys."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
import yaml

from platoon.cli.app import run

SCHEMA = """
from typing import ClassVar
from platoon.config import Section
from platoon.config.base import DeprecatedKey

class Mine(Section):
    DEPRECATED: ClassVar = {"old": DeprecatedKey("0.6.0", renamed_to="new")}
    new: int = 1
    other: float = 2.0

class Other: ...
"""


@pytest.fixture(autouse=True)
def _import_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", list(sys.path))


def write(path: Path, content: object) -> str:
    path.write_text(content if isinstance(content, str) else yaml.safe_dump(content), encoding="utf-8")
    return str(path)


def test_a_file_of_entries_is_checked_as_such(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    entry = {"env": "platoon-number-search", "harness": "platoon-react"}
    good = write(tmp_path / "good.yaml", {"environments": [entry]})
    bad = write(tmp_path / "bad.yaml", {"environments": [{**entry, "harness": "platoon-reakt", "seeed": 1}]})
    worse = write(tmp_path / "worse.yaml", {"environments": [{**entry, "harness": "platoon-reakt"}]})
    assert run(["config", "validate", good]) == 0
    assert capsys.readouterr().out == f"ok {good} (environments)\n"
    assert run(["config", "validate", bad, worse]) == 78
    text = capsys.readouterr().out
    assert "environments.0.seeed: unknown key; did you mean environments.0.seed?" in text
    assert f"FAIL {worse}\n  environments.0.harness: no harness is named 'platoon-reakt'" in text
    assert run(["config", "show", good]) == 0
    assert "env: platoon-number-search@1" in capsys.readouterr().out


def test_a_file_without_a_schema_is_only_merged(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(tmp_path / "base.yaml", {"a": {"b": 1, "c": 2}})
    path = write(tmp_path / "x.yaml", {"extends": "base.yaml", "a": {"b": 3}})
    assert run(["config", "validate", path]) == 0
    assert capsys.readouterr().out == f"ok {path} (no schema)\n"
    assert run(["config", "show", path, "a.d=1e-3", "a.e=none", "a.f="]) == 0
    assert yaml.safe_load(capsys.readouterr().out) == {"a": {"b": 3, "c": 2, "d": 0.001, "e": "none", "f": None}}
    assert run(["config", "validate", path, f"a.d={'x' * 300}"]) == 0
    train = write(tmp_path / "t.yaml", {"train": {"model_name": 3}})
    assert run(["config", "show", train, "--kind", "none"]) == 0
    assert run(["config", "show", train]) == 78


def test_a_schema_of_ones_own(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "my_schema_module.py").write_text(SCHEMA, encoding="utf-8")
    path = write(tmp_path / "x.yaml", {"old": 4})
    argv = ["--schema", "my_schema_module:Mine"]
    assert run(["config", "show", path, *argv, "--defaults"]) == 0
    captured = capsys.readouterr()
    assert yaml.safe_load(captured.out) == {"new": 4, "other": 2.0}
    assert captured.err == "platoon: old is deprecated; use new (platoon 0.6.0 removes it)\n"
    assert run(["config", "validate", path, *argv]) == 0
    assert capsys.readouterr().out.startswith(f"ok {path} (Mine)\n  old is deprecated; use new")
    assert run(["config", "validate", path, *argv, "--strict"]) == 78
    assert capsys.readouterr().out.startswith(f"FAIL {path}\n  old is deprecated; use new")
    assert run(["config", "validate", path, *argv, "other=x"]) == 78
    assert "other=x: must be a number" in capsys.readouterr().out
    for wrong in ("my_schema_module:Other", "my_schema_module:Nothing", "no_module_here:Mine", "Mine"):
        assert run(["config", "show", path, "--schema", wrong]) == 78
        assert f"--schema {wrong}: " in capsys.readouterr().err


@pytest.mark.parametrize(("filter_", "code"), [("error", 78), ("ignore", 0)])
def test_deprecations_follow_the_warning_filters(
    filter_: str, code: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    import warnings

    (tmp_path / "my_schema_module.py").write_text(SCHEMA, encoding="utf-8")
    path = write(tmp_path / "x.yaml", {"old": 4})
    with warnings.catch_warnings():
        warnings.simplefilter(filter_)  # type: ignore[arg-type]
        assert run(["config", "show", path, "--schema", "my_schema_module:Mine"]) == code
    assert bool(capsys.readouterr().err) == (code == 78)


def test_validate_says_what_each_entry_changes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    entry = {
        "env": "platoon-number-search",
        "harness": "platoon-react",
        "workflow_config": {"group_size": 4, "rollout_config": {"inference_params": {"temperature": 0.5}}},
        "eval_overrides": {"workflow_config": {"group_size": 2}},
        "max_staleness": 3,
    }
    config = {
        "train": {"model_name": "m", "renderer_name": "r", "max_staleness": 1},
        "eval": {"every": 1},
        "environments": [entry],
    }
    path = write(tmp_path / "x.yaml", config)
    assert run(["config", "validate", path]) == 0
    line = capsys.readouterr().out.splitlines()[1]
    assert line == (
        "  environments[default]: group_size 4, rollout_config.inference_params.temperature 0.5, max_staleness 3, "
        "in evaluation: group_size 2, rollout_config.inference_params.temperature 0.5"
    )


NAMED = """
import platoon as pt

TALL = pt.EnvironmentEntry(
    "acme-tall",
    service="a:B",
    workflow_config={"rollout_config": {"max_steps": 9, "timeout": 60, "inference_params": {"top_p": 0.9}}},
)
"""


def test_show_names_the_layer_of_every_setting(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "acme_tall_module.py").write_text(NAMED, encoding="utf-8")
    entry = {
        "env": "acme_tall_module:TALL",
        "workflow_config": {"group_size": 4, "rollout_config": {"timeout": 30}},
        "max_staleness": 5,
    }
    train = {"model_name": "m", "renderer_name": "r", "max_staleness": 1, "workflow_config": {"filter_errors": False}}
    path = write(tmp_path / "x.yaml", {"train": train, "eval": {"every": 1}, "environments": [entry]})
    change = "environments.0.workflow_config.rollout_config.step_timeout=300"
    assert run(["config", "show", path, change, "--entry", "default"]) == 0
    blocks = capsys.readouterr().out.split("environments[default]: ")
    training = [line.split() for line in blocks[1].splitlines()[1:]]
    sources = {line[0]: " ".join(line[2:]) for line in training}
    assert sources["group_size:"] == "entry (default: 8)"
    assert sources["filter_errors:"] == "train.workflow_config (default: true)"
    assert sources["rollout_config.max_steps:"] == "named environment (default: null)"
    assert sources["rollout_config.inference_params.top_p:"] == "named environment (default: null)"
    assert sources["rollout_config.timeout:"] == "entry (default: null)"
    assert sources["rollout_config.step_timeout:"] == "entry"
    assert sources["max_staleness:"] == "entry (train.max_staleness: 1)"
    evaluation = {line.split()[0]: " ".join(line.split()[2:]) for line in blocks[2].splitlines()[1:]}
    assert evaluation["rollout_config.max_steps:"] == "named environment, inherited (default: null)"
    assert evaluation["group_size:"] == "default"
    assert run(["config", "show", path, "--entry", "other"]) == 78
    assert "--entry other: the entries are default" in capsys.readouterr().err


def test_show_says_what_an_evaluation_does_not_apply(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    entry = {"service": "a:B", "workflow_config": {"group_size": 4, "rollout_config": {"max_steps": 3}}}
    path = write(tmp_path / "x.yaml", {"inference": {"model_name": "m"}, "environments": [entry]})
    assert run(["config", "show", path]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert "# environments[default]: platoon eval rollouts" in lines
    assert "# not applied: workflow_config.group_size" in lines
    assert not any("filter_errors" in line for line in lines if line.startswith("#"))


def test_validate_for_a_script(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    good = write(tmp_path / "good.yaml", {"train": {"model_name": "m", "renderer_name": "r"}})
    bad = write(tmp_path / "bad.yaml", {"train": {"model_name": "m"}})
    assert run(["config", "validate", good, bad, "--json-output"]) == 78
    first, second = json.loads(capsys.readouterr().out)
    assert (first["file"], first["ok"], first["schema"], first["problems"]) == (good, True, "train", [])
    assert (second["ok"], len(second["problems"])) == (False, 1)


def test_a_file_for_the_other_command_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    training = write(tmp_path / "t.yaml", {"train": {"model_name": "m", "typo": 1}})
    evaluation = write(tmp_path / "e.yaml", {"inference": {"model_name": "m", "typo": 1}})
    for command, path, what in (("eval", training, "a training"), ("train", evaluation, "an evaluation")):
        other = "train" if command == "eval" else "eval"
        assert run([command, path]) == 78
        (line,) = capsys.readouterr().err.splitlines()
        assert line.startswith(f"platoon: {path} is {what} config (it has the section ")
        assert line.endswith(f"; run it with: platoon {other} {path}")


def test_a_dump_with_defaults_means_the_same_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    train = {"model_name": "m", "renderer_name": "r", "workflow_config": {"group_size": 4}}
    entries = [{"name": "a", "service": "x:Y"}, {"name": "b", "service": "x:Y", "workflow_config": {"group_size": 2}}]
    path = write(tmp_path / "x.yaml", {"train": train, "eval": {"every": 1}, "environments": entries})
    assert run(["config", "show", path, "--defaults"]) == 0
    dump = write(tmp_path / "dump.yaml", capsys.readouterr().out)
    shown = []
    for one in (path, dump):
        assert run(["config", "show", one, "--entry", "b"]) == 0
        shown.append([line.split()[:2] for line in capsys.readouterr().out.splitlines()])
    assert shown[0] == shown[1]
    loaded = yaml.safe_load(Path(dump).read_text(encoding="utf-8"))
    assert [entry["workflow_config"] for entry in loaded["environments"]] == [{}, {"group_size": 2}]
    assert (loaded["train"]["max_concurrent_rollouts"], loaded["eval"]["max_concurrent_rollouts"]) == (128, 256)
