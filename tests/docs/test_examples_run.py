"""The documentation's snippets do what they say, on a run of the first example and on the README's own project."""

from __future__ import annotations

import asyncio
import re
import shlex
from pathlib import Path

import pytest

from platoon.cli.app import run as command
from platoon.config import add_project_path, load
from platoon.envs.named import NamedEnvironments
from tests.docs.pages import ROOT, Piece, blocks, commands, named_files, spans, text_of

pytest.importorskip("openreward")
pytest.importorskip("tinker")
RUN = "runs/first-run/errand"
SMALL = (
    "train.max_training_steps=1",
    "train.batch_size=2",
    "train.workflow_config.group_size=2",
    "eval.every=1",
    "eval.at_start=false",
    "environments.0.eval_dataset_kwargs.limit=2",
)
TRAINS = re.compile(r"\b(train|evaluate|prepare)\(")


@pytest.fixture(scope="session")
def work(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with a run of one step under the name that the pages use."""
    from platoon.train.run import train_run

    directory = tmp_path_factory.mktemp("docs")
    config = ROOT / "examples/first-run/train.yaml"
    add_project_path(config)
    loaded = load(config, [f"log_path={directory}/runs", *SMALL], resolver=NamedEnvironments())
    result = asyncio.run(train_run(loaded))
    assert (result.status, result.step) == ("finished", 1)
    return directory


@pytest.fixture
def inside(work: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(work)
    return work


def readers() -> list[Piece]:
    """Python snippets that read a run, or play an episode."""
    return [block for block in blocks("python") if re.search(r"\bpl\.|read_table|run_episode", block.text)]


@pytest.mark.parametrize("block", readers(), ids=str)
def test_snippets_run(block: Piece, inside: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert not TRAINS.search(block.text)
    exec(compile(block.text, str(block), "exec"), {"__name__": "snippet"})
    assert capsys.readouterr().out.strip()


@pytest.mark.parametrize("piece", [one for one in commands() if one.text.startswith("platoon tasks ")], ids=str)
def test_task_commands_run(piece: Piece, inside: Path) -> None:
    assert command(shlex.split(piece.text)[1:]) == 0


def test_every_file_of_a_run_is_described(work: Path) -> None:
    page = text_of(ROOT / "docs/run-directory.md").split("## Reading")[0]
    described = [name for row in re.findall(r"^\| (.+?) \|", page, re.MULTILINE) for name in re.findall("`(.+?)`", row)]
    patterns = [re.sub(r"<\w+>", "*", name) for name in described]
    files = [path.relative_to(work / RUN) for path in (work / RUN).rglob("*") if path.is_file()]
    assert len(files) > 10
    unknown = [
        str(file)
        for file in files
        if not any(file.match(pattern) if pattern[-1] != "/" else file.parts[0] == pattern[:-1] for pattern in patterns)
    ]
    assert unknown == []


def test_described_columns_are_the_tables(work: Path) -> None:
    import polars as pl

    page = text_of(ROOT / "docs/run-directory.md").split("### Columns")[1].split("## Export")[0]
    for table in ("tasks/groups", "usage"):
        text = page.split(f"`{table}`: ")[1].split("\n\n")[0].split("A member has")[0]
        assert re.findall("`(.+?)`", text) == pl.read_parquet(work / RUN / table).columns


def test_described_metrics_are_in_the_table(work: Path) -> None:
    import polars as pl

    written = set(pl.read_parquet(work / RUN / "metrics")["key"])
    named = re.compile(r"(?:train|eval|timing|time|optim)/[\w/]+")
    keys = {piece.text: piece for piece in spans(generated=False) if named.fullmatch(piece.text)}
    assert len(keys) > 5
    assert [f"{keys[key]}: {key}" for key in keys.keys() - written] == []


def test_the_readme_s_project_trains(tmp_path: Path) -> None:
    from platoon.train.run import train_run

    for block in blocks():
        name = named_files(block)
        if block.page == ROOT / "README.md" and name:
            (tmp_path / name).write_text(block.text)
    config = tmp_path / "letters.yaml"
    assert command(["config", "validate", "--tasks", str(config)]) == 0
    steps = ["train.max_training_steps=1", "train.workflow_config.group_size=2"]
    loaded = load(config, [f"log_path={tmp_path}/runs", *steps], resolver=NamedEnvironments())
    result = asyncio.run(train_run(loaded))
    assert (result.status, result.step) == ("finished", 1)
    events = (result.run_dir / "tasks/events.jsonl").read_text()
    assert '"verdict":"error"' not in events
