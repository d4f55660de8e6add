"""A whole run on real parts: embedded service through the SDK, gateway, rollouts, credit, books."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path

import polars as pl
import pytest

from platoon.cli.app import run as platoon
from platoon.config import ConfigError
from platoon.stats.jsonl import read_jsonl
from platoon.stats.tables import read_table
from platoon.testing.audit import audit_run
from platoon.train.run import open_training, train_run
from platoon.train.stop import STOP_FILE, StopRequest
from tests.train.running import finish, loaded, run_dir, start, wait_until, weights


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("undisturbed")
    done = finish(path)
    assert done.returncode == 0, done.stderr
    return run_dir(path)


def test_run_directory_holds_what_a_reader_needs(undisturbed: Path) -> None:
    for name in ("config.resolved.yaml", "lock.json", "checkpoints.jsonl", "evaluations.jsonl", "tasks/events.jsonl"):
        assert (undisturbed / name).exists(), name
    groups = pl.read_parquet(undisturbed / "tasks/groups/*.parquet")
    assert len(groups) == 18
    assert groups["intake"].to_list() == list(range(18))
    metrics = pl.read_parquet(undisturbed / "metrics/*.parquet")
    steps = metrics.filter(pl.col("key") == "train/batch/task_reward/avg")
    assert steps["step"].to_list() == [1, 2, 3, 4, 5, 6]
    usage = read_table(undisturbed, "usage")
    assert usage.filter(pl.col("phase") == "train")["calls"].sum() == 6 * 3 * 4


def test_every_position_is_used_once(undisturbed: Path) -> None:
    audit = audit_run(undisturbed)
    assert audit.problems == []
    assert audit.fates == dict.fromkeys(range(18), "consumed")


def test_checkpoints_and_evaluations_are_named_by_absolute_steps(undisturbed: Path) -> None:
    rows = read_jsonl(undisturbed / "checkpoints.jsonl").rows
    names = [row["name"] for row in rows]
    assert names == ["recovery-000000", "recovery-000002", "recovery-000004", "recovery-000006", "final"]
    assert [row["batch"] for row in rows] == [0, 2, 4, 6, 6]
    evaluations = read_jsonl(undisturbed / "evaluations.jsonl").rows
    assert [row["step"] for row in evaluations] == [0, 3, 6]
    assert all(0.0 <= row["task_reward"] <= 1.0 for row in evaluations)


def test_logged_logprobs_of_sampling_and_training_agree(undisturbed: Path) -> None:
    metrics = read_table(undisturbed, "metrics")
    divergence = metrics.filter(pl.col("key") == "train/optim/kl_sample_train_v2")["value"]
    assert len(divergence) > 0
    assert divergence.max() < 1e-8  # type: ignore[operator]


def test_resolved_config_and_records_hold_no_secret(tmp_path: Path) -> None:
    done = finish(tmp_path, "train.max_training_steps=1", "stats.wandb.api_key=very-secret-key", "eval.every=0")
    assert done.returncode == 0, done.stderr
    for path in run_dir(tmp_path).rglob("*"):
        if path.is_file():
            assert b"very-secret-key" not in path.read_bytes(), path


async def test_finished_run_says_so_and_does_nothing(undisturbed: Path) -> None:
    before = sorted(path.stat().st_mtime_ns for path in undisturbed.rglob("*.parquet"))
    result = await train_run(loaded(undisturbed.parent.parent))
    assert (result.status, result.steps, result.step) == ("nothing to do", 0, 6)
    assert sorted(path.stat().st_mtime_ns for path in undisturbed.rglob("*.parquet")) == before


async def test_extended_run_goes_on(undisturbed: Path, tmp_path: Path) -> None:
    first = await train_run(loaded(tmp_path, train__max_training_steps=2, eval__every=0))
    assert (first.status, first.steps) == ("finished", 2)
    second = await train_run(loaded(tmp_path))
    assert (second.status, second.steps, second.step) == ("finished", 4, 6)
    assert weights(run_dir(tmp_path)) == weights(undisturbed)
    assert audit_run(run_dir(tmp_path)).fates == dict.fromkeys(range(18), "consumed")


async def test_stop_saves_and_resume_matches(undisturbed: Path, tmp_path: Path) -> None:
    stop = StopRequest()
    async with open_training(loaded(tmp_path), stop) as run:
        await run.step()
        await run.step()
        await run.step()
        stop.request("the test")
        result = await run.finish()
    assert (result.status, result.steps) == ("interrupted", 3)
    assert read_jsonl(run_dir(tmp_path) / "checkpoints.jsonl").rows[-1]["name"] == "000003_interrupted"
    assert (await train_run(loaded(tmp_path))).status == "finished"
    assert weights(run_dir(tmp_path)) == weights(undisturbed)


async def test_stop_file_stops_the_run(tmp_path: Path) -> None:
    async with open_training(loaded(tmp_path, train__max_training_steps=10_000, eval__every=0)) as run:
        (run.run_dir / STOP_FILE).touch()
        while not run.finished:
            await run.step()
        result = await run.finish()
    assert result.status == "interrupted"
    assert not (run.run_dir / STOP_FILE).exists()


async def test_staleness_lets_rollouts_run_ahead(tmp_path: Path) -> None:
    result = await train_run(loaded(tmp_path, train__max_staleness=2, eval__every=0, train__num_microbatches=3))
    assert result.status == "finished"
    audit = audit_run(run_dir(tmp_path))
    assert audit.problems == []
    assert set(audit.fates) >= set(range(15))
    assert set(audit.fates.values()) <= {"consumed", "stale"}


async def test_directory_in_use_is_refused(tmp_path: Path) -> None:
    async with open_training(loaded(tmp_path, eval__every=0)) as run:
        second = finish(tmp_path)
        assert second.returncode == 78
        assert "in use" in second.stderr
        assert run.state is not None


async def test_more_batch_than_tasks_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"train\.batch_size: 32 is more than the 12 training tasks"):
        await train_run(loaded(tmp_path, train__batch_size=32))


async def test_missing_duration_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="num_epochs or max_training_steps"):
        await train_run(loaded(tmp_path / "runs", train__max_training_steps=None))
    assert not (tmp_path / "runs").exists()


def test_sigterm_stops_with_a_final_save(tmp_path: Path) -> None:
    process = start(tmp_path, "train.max_training_steps=10000", "eval.every=0")
    events = run_dir(tmp_path) / "tasks" / "events.jsonl"
    wait_until(lambda: events.exists() and events.read_bytes().count(b'"fate"') >= 6, process)
    process.terminate()
    assert process.wait(60) == 0
    rows = read_jsonl(run_dir(tmp_path) / "checkpoints.jsonl").rows
    assert rows[-1]["name"].endswith("_interrupted")
    audit = audit_run(run_dir(tmp_path))
    assert audit.problems == []
    assert set(audit.fates) == set(range(3 * rows[-1]["batch"]))


def test_lock_file_names_versions_and_command(undisturbed: Path) -> None:
    lock = json.loads((undisturbed / "lock.json").read_text())
    assert lock["versions"]["platoon"] == "0.4.0"
    assert lock["versions"]["tinker"].startswith("0.25")
    assert lock["argv"][0] == "train"


async def test_cancelled_run_saves_before_it_leaves(undisturbed: Path, tmp_path: Path) -> None:
    reached = asyncio.Event()

    async def train() -> None:
        async with open_training(loaded(tmp_path)) as run:
            for number in range(6):
                if number == 3:
                    reached.set()
                await run.step()

    task = asyncio.create_task(train())
    await reached.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    rows = read_jsonl(run_dir(tmp_path) / "checkpoints.jsonl").rows
    assert rows[-1]["name"] in {"000003_interrupted", "000004_interrupted"}
    assert (await train_run(loaded(tmp_path))).status == "finished"
    assert weights(run_dir(tmp_path)) == weights(undisturbed)
    assert audit_run(run_dir(tmp_path)).fates == dict.fromkeys(range(18), "consumed")


@pytest.mark.parametrize("form", ["parquet", "csv", "jsonl"])
def test_statistics_are_shown_and_exported(
    form: str, undisturbed: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / f"tasks.{form}"
    assert platoon(["tasks", "export", str(undisturbed), "--format", form, "-o", str(out)]) == 0
    assert f"wrote {out}" in capsys.readouterr().err
    readers: dict[str, Callable[[Path], pl.DataFrame]] = {
        "parquet": pl.read_parquet,
        "csv": pl.read_csv,
        "jsonl": pl.read_ndjson,
    }
    tasks = readers[form](out)
    assert len(tasks) == 12
    assert tasks["groups"].sum() == 18
    assert tasks["fate_consumed"].sum() == 18


def test_tasks_show_prints_a_row_a_task(undisturbed: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert platoon(["tasks", "show", str(undisturbed), "--top", "3"]) == 0
    printed = capsys.readouterr().out.splitlines()
    assert "checkpoint final" in printed[0]
    assert len(printed) == 5
