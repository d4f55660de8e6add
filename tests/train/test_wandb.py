"""Weights & Biases in offline mode: what its own run file holds, and that a failure only warns."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from platoon.stats.jsonl import read_jsonl
from platoon.stats.tables import read_table
from platoon.train.run import train_run
from platoon.train.sinks import WandbSink
from tests.train.running import loaded, run_dir

OFFLINE = {"mode": "offline", "api_key": "0123456789abcdef" * 3, "tags": ["a"], "notes": "n"}


@pytest.fixture(autouse=True)
def quiet_wandb(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("WANDB_CONFIG_DIR", "WANDB_CACHE_DIR", "WANDB_DATA_DIR"):
        monkeypatch.setenv(name, str(tmp_path / "wandb-home"))
    monkeypatch.setenv("WANDB_SILENT", "true")
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))


def chunks(data: bytes) -> Iterator[bytes]:
    """The records of a `.wandb` file: LevelDB's log format behind seven bytes of header, in blocks of 32 KiB."""
    held, at = b"", 7
    while at + 7 <= len(data):
        if 32768 - at % 32768 < 7:
            at += 32768 - at % 32768
            continue
        length, kind = struct.unpack_from("<HB", data, at + 4)
        if kind == 0:
            return
        held += data[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in (1, 4):  # whole, or the last part
            yield held
            held = b""


def records(directory: Path) -> Iterator[Any]:
    """The records of the newest offline run below a directory."""
    from wandb.proto import wandb_internal_pb2

    newest = max(directory.glob("wandb/offline-run-*/*.wandb"), key=lambda path: path.stat().st_mtime_ns)
    for data in chunks(newest.read_bytes()):
        record = wandb_internal_pb2.Record()
        record.ParseFromString(data)
        yield record


def history(directory: Path) -> dict[int, dict[str, float]]:
    """What was logged, by step."""
    found: dict[int, dict[str, float]] = {}
    for record in records(directory):
        if record.WhichOneof("record_type") != "history":
            continue
        row = {(item.key or "/".join(item.nested_key)): json.loads(item.value_json) for item in record.history.item}
        found.setdefault(int(row["_step"]), {}).update(row)
    return found


async def test_metrics_config_and_run_id_arrive(tmp_path: Path) -> None:
    settings = {"stats__wandb": OFFLINE, "train__max_training_steps": 2}
    await train_run(loaded(tmp_path, **settings))
    directory = run_dir(tmp_path)
    logged = history(directory)
    assert {1, 2} <= set(logged)
    assert 0.0 <= logged[1]["train/batch/task_reward/avg"] <= 1.0
    assert logged[2]["progress/done_frac"] == 1.0
    in_wandb = {key for row in logged.values() for key in row if not key.startswith("_")}
    assert in_wandb == set(read_table(directory, "metrics")["key"]), "the table and W&B hold the same series"
    (run,) = (record.run for record in records(directory) if record.WhichOneof("record_type") == "run")
    rows = read_jsonl(directory / "checkpoints.jsonl").rows
    assert {row["wandb_run_id"] for row in rows} == {run.run_id}
    assert (run.project, run.display_name, run.run_group) == ("e", "t", "e_t")
    assert (list(run.tags), run.notes) == (["a"], "n")
    config = {item.key: item.value_json for item in run.config.update}
    assert json.loads(config["train"])["batch_size"] == 3
    assert "api_key" not in config["stats"]
    for path in directory.rglob("*"):
        assert path.is_dir() or OFFLINE["api_key"].encode() not in path.read_bytes(), path  # type: ignore[attr-defined]

    await train_run(loaded(tmp_path, **{**settings, "train__max_training_steps": 3}))
    rows = read_jsonl(directory / "checkpoints.jsonl").rows
    assert {row["wandb_run_id"] for row in rows} == {run.run_id}
    assert 3 in history(directory)


def test_a_failure_to_begin_only_warns(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    config = loaded(tmp_path, stats__wandb={"mode": "offline", "project": "a/b"}).train_config
    assert WandbSink.open(config, tmp_path, {}, None) is None
    assert "W&B is off for this run" in caplog.text


class Failing:
    """A W&B run whose service died."""

    id = "x"

    def log(self, *_: object, **__: object) -> None:
        raise OSError("the service process is gone")

    def finish(self, *_: object, **__: object) -> None:
        raise OSError("the service process is gone")


def test_a_failure_to_log_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    sink = WandbSink(Failing())
    for step in range(3):
        sink.log(step, {"a": 1.0})
    sink.close(0)
    assert caplog.text.count("did not take the metrics") == 1
    assert "did not end its run" in caplog.text
