"""Commands that say what is there: harnesses, programs, environments, extensions, and what is not built."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

import platoon
from platoon.cli.app import run
from platoon.cli.builtins import builtins
from platoon.extensions.entry_points import GROUPS, installed
from platoon.extensions.names import import_string

ENTRY = {"name": "a", "env": "platoon-number-search", "harness": "platoon-react"}
GOOD = {"log_path": "runs", "train": {"model_name": "m", "renderer_name": "r"}, "environments": [ENTRY]}


GOOD_VALUES = """
import platoon as pt

def loop(version):
    @pt.harness("good-loop", version=version)
    async def run(ctx):
        return pt.AgentResult()
    return run

LOOPS = [loop("1"), loop("2")]

def score(trajectory):
    return trajectory["reward"], {}
"""


@pytest.fixture(autouse=True)
def _import_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", list(sys.path))


def out(argv: list[str], capsys: pytest.CaptureFixture[str], code: int = 0) -> str:
    assert run(argv) == code
    captured = capsys.readouterr()
    return captured.out if code == 0 else captured.err


def test_what_is_built_in_is_where_the_list_says() -> None:
    found = builtins()
    for kind in ("harness", "program", "environment", "reward_processor"):
        for source in found[kind].values():
            import_string(source)
    for kind in ("task_sampler", "group_admission"):
        for module in found[kind].values():
            importlib.import_module(module)


def test_lists_as_tables_and_as_json(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    for argv, word in (
        (["harness", "list"], "platoon-react@1"),
        (["program", "list"], "single"),
        (["env", "list"], "platoon-number-search"),
        (["extensions", "list"], "platoon-delegation"),
        (["extensions", "list", "--kind", "environment"], "platoon-number-search"),
    ):
        assert word in out(argv, capsys)
        for flag in ("--json-output", "--json"):
            assert word in json.dumps(json.loads(out([*argv, flag], capsys)))
    assert "platoon-react" not in out(["extensions", "list", "--kind", "environment"], capsys)
    path = tmp_path / "run.yaml"
    path.write_text(yaml.safe_dump(GOOD), encoding="utf-8")
    change = ["environments.0.harness={platoon-react: 1, platoon-noop: 2}", "environments.0.harness_options.a=1"]
    shown = out(["env", "list", str(path), *change], capsys)
    assert "platoon-react, platoon-noop" in shown
    assert "python://platoon.envs.number_search.env:NumberSearchEnvironment" in shown
    path.write_text(yaml.safe_dump({"environments": GOOD["environments"]}), encoding="utf-8")
    row = {"name": "a", "weight": "tasks", "service": "python://platoon.envs.number_search.env:NumberSearchEnvironment"}
    row |= {"harness": "platoon-react", "program": "single", "rollout": "harness_rollout"}
    assert json.loads(out(["env", "list", str(path), "--json"], capsys))["entries"] == [row]
    assert "no run plays it" in out(["config", "show", str(path), "--entry", "a"], capsys, 78)


def test_shows(capsys: pytest.CaptureFixture[str]) -> None:
    assert "platoon.harness.react:react" in out(["harness", "show", "platoon-react"], capsys)
    assert "platoon.rollout.programs:single" in out(["program", "show", "single"], capsys)
    shown = out(["env", "show", "platoon-number-search"], capsys)
    assert shown.startswith("# platoon-number-search@1\n")
    assert yaml.safe_load(shown)["entry"]["agents"] == {"max_depth": 0}
    assert json.loads(out(["extensions", "show", "platoon-react", "--json-output"], capsys)) == {
        "kind": "harness",
        "name": "platoon-react",
        "distribution": "platoon",
        "version": platoon.__version__,
        "value": "platoon.harness.react:react",
        "status": "ok",
        "builtin": True,
        "requires": [],
        "entry_point": None,
        "used_in": "environments.*.harness",
        "registers": None,
        "error": None,
    }
    for argv in (["harness", "show", "nothing"], ["program", "show", "nothing"], ["env", "show", "nothing"]):
        assert "nothing" in out(argv, capsys, 78)
    assert "did you mean platoon-react?" in out(["extensions", "show", "platoon-reakt"], capsys, 78)


def test_extensions_of_other_distributions(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    info = tmp_path / "acme_cli-1.0.dist-info"
    info.mkdir()
    requires = "Requires-Dist: platoon>=0.4,<0.5"
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: acme-cli\nVersion: 1.0\n{requires}\n")
    (info / "entry_points.txt").write_text("[platoon.harnesses]\nacme-cli-gone = acme_cli_gone:loop\n")
    installed.cache_clear()
    try:
        assert "acme-cli-gone" in out(["extensions", "list"], capsys)
        assert "acme_cli_gone" in out(["extensions", "show", "acme-cli-gone"], capsys)
        assert out(["extensions", "check", "acme-cli"], capsys) == "0 errors, 0 warnings\n"
        assert run(["extensions", "check", "--load"]) == 78
        assert "acme-cli: harness 'acme-cli-gone' of acme-cli does not load" in capsys.readouterr().out
        assert run(["extensions", "show", "acme-cli-gone", "--load", "--json-output"]) == 78
        assert "ModuleNotFoundError" in json.loads(capsys.readouterr().out)["error"]
    finally:
        installed.cache_clear()


def test_a_component_that_loads_to_something_else_is_an_error(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    info = tmp_path / "odd_things-1.0.dist-info"
    info.mkdir()
    requires = "Requires-Dist: platoon>=0.4,<0.5"
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: odd-things\nVersion: 1.0\n{requires}\n")
    points = [f"[{group}]\nodd-{number} = odd_values:VALUE\n" for number, group in enumerate(GROUPS.values())]
    (info / "entry_points.txt").write_text("".join(points))
    (tmp_path / "odd_values.py").write_text("VALUE = 3\n")
    good = "[platoon.harnesses]\ngood-loop = good_values:LOOPS\n"
    good += "[platoon.reward_processors]\ngood-score = good_values:score\n"
    (tmp_path / "good_values.py").write_text(GOOD_VALUES)
    other = tmp_path / "good_things-1.0.dist-info"
    other.mkdir()
    (other / "METADATA").write_text(f"Metadata-Version: 2.1\nName: good-things\nVersion: 1.0\n{requires}\n")
    (other / "entry_points.txt").write_text(good)
    installed.cache_clear()
    try:
        assert out(["extensions", "check", "good-things", "--load"], capsys) == "0 errors, 0 warnings\n"
        for name, registers in (("good-loop", "good-loop@1, good-loop@2"), ("good-score", "good_values:score")):
            shown = json.loads(out(["extensions", "show", name, "--load", "--json"], capsys))
            assert (shown["registers"], shown["error"]) == (registers, None)
        assert out(["extensions", "check", "odd-things"], capsys) == "0 errors, 0 warnings\n"
        assert run(["extensions", "check", "odd-things", "--load"]) == 78
        lines = capsys.readouterr().out.splitlines()
        assert len([line for line in lines if line.startswith("error: odd-things: ")]) == len(GROUPS), lines
    finally:
        installed.cache_clear()


@pytest.mark.parametrize("kind", ["harbor", "toolchain", "sandbox", "viz"])
def test_what_is_not_built_says_so_in_one_line(kind: str, capsys: pytest.CaptureFixture[str]) -> None:
    for rest in ([], ["images", "build", "x", "--key", "3"], ["--help"]):
        text = out([kind, *rest], capsys, 78)
        assert text.startswith(f"platoon: {kind}: ")
        assert text.count("\n") == 1


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_scripts_name_the_commands(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    script = out(["completion", shell], capsys)
    assert "validate" in script
    if shell == "bash":
        assert subprocess.run(["bash", "-n"], input=script, text=True, check=False).returncode == 0


def test_a_reader_that_leaves_early_is_no_failure() -> None:
    command = f"{sys.executable} -m platoon extensions list --json-output | head -1"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False)
    assert done.stdout == "[\n"
    assert "Traceback" not in done.stderr
