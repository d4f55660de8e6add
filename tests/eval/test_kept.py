"""Files of rollouts: text of any kind survives, what is torn is reported and costs nothing else."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from platoon.config import ConfigError, EvalRun
from platoon.eval.kept import keep, read, read_all
from platoon.eval.output import check_provenance, directory_names, policy_name
from platoon.eval.policy import WeightsSource, weights_source
from platoon.eval.records import Judging, Kept
from platoon.rollout.episode import Episode
from platoon.rollout.outcome import Outcome
from platoon.rollout.trajectory import Interactions, Task, Trajectory, TrajectoryCollection
from tests.eval.playing import comparable, data, evaluated, report, rows

ODD = "a\u2028b\u2029c\u0085d\x0be\x0cf\x1cg\r\nh"
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)


def episode(task_id: str, text: str, reward: float = 1.0) -> Episode:
    misc = {"outcome": Outcome("scored", {"reward": reward}).record()}
    root = Trajectory("r", Task(text, task_id), reward=reward, finish_message=text, misc=misc)
    collection = TrajectoryCollection("c", {"r": root})
    return Episode(collection, Interactions(), Outcome("scored", {"reward": reward}), "completed", 0.5)


def dump(task_id: str, text: str) -> dict[str, Any]:
    return {
        "id": "c",
        "trajectories": {"r": {"task": {"id": task_id}, "steps": [], "reward": 1.0, "misc": {"note": text}}},
    }


async def test_odd_line_ends_stay_in_their_record(tmp_path: Path) -> None:
    ids = [f"pass-{ODD}", "pass-b"]
    first = (await evaluated(tmp_path, data(tmp_path, ids))).summary
    assert first is not None
    assert first["total_tasks"] == 2
    found = [row["task_id"] for row in rows(tmp_path / "out" / "reports" / "task_results.jsonl")]
    assert sorted(found) == sorted(ids)
    again = (await evaluated(tmp_path, {**data(tmp_path, ids), "stage": "report"})).summary
    assert comparable(first) == comparable(again)
    assert [task["task_id"] for task in report(tmp_path)["tasks"]] == found


def test_lines_of_dumps_split_on_newlines_alone(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    lines = [
        json.dumps(dump("t", ODD), ensure_ascii=False),
        json.dumps(dump("u", ODD)),
        json.dumps(dump("t", ODD))[:40],
    ]
    (tmp_path / "rollouts").mkdir()
    (tmp_path / "rollouts" / "old.jsonl").write_bytes("\n".join(lines).encode())
    (tmp_path / "rollouts" / "one.json").write_text(json.dumps(dump("t", "x")))
    (tmp_path / "rollouts" / "other.json").write_text("{")
    with caplog.at_level(logging.WARNING):
        found = [one.record for one in read_all(tmp_path, Judging())]
    assert [(r.task_id, r.rollout_index, r.success) for r in found] == [("t", 0, True), ("t", 1, True), ("u", 0, True)]
    assert "cut short" in caplog.text
    assert "other.json is not JSON" in caplog.text


def test_a_torn_last_checkpoint_does_not_count(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    row = {"name": ODD, "sampler_path": "tinker://r/sampler_weights/000001"}
    text = json.dumps(row, ensure_ascii=False) + "\n" + json.dumps({**row, "sampler_path": "tinker://late"})[:-3]
    (tmp_path / "checkpoints.jsonl").write_bytes(text.encode())
    with caplog.at_level(logging.WARNING):
        assert weights_source(str(tmp_path)) == WeightsSource("tinker://r/sampler_weights/000001", tmp_path)
    assert "cut short" in caplog.text
    (tmp_path / "checkpoints.jsonl").write_text("")
    with pytest.raises(ConfigError, match="no checkpoint with sampler weights yet"):
        weights_source(str(tmp_path))


@given(task_id=TEXT, text=TEXT, reward=st.floats(-2, 2))
@settings(max_examples=30, deadline=None)
def test_what_is_kept_reads_back_the_same(
    tmp_path_factory: pytest.TempPathFactory, task_id: str, text: str, reward: float
) -> None:
    directory = tmp_path_factory.mktemp("kept") / "rollouts" / "x" / "rollout_3"
    record = keep(directory, Kept(task_id, 3), episode(task_id, text, reward), {"backend": "tinker"}, Judging())
    found = read(directory, Judging())
    assert found is not None
    assert found.record == record
    assert record.reward == reward


def test_another_attempt_leaves_nothing_of_the_one_before(tmp_path: Path) -> None:
    directory = tmp_path / "rollouts" / "t" / "rollout_0"
    keep(directory, Kept("t", 0), episode("t", "x"), {}, Judging())
    for played, status in (
        ("ValueError: no", None),
        (Episode.failed("error", Outcome.infra("env_connect", reason="nobody answers")), "error"),
    ):
        record = keep(directory, Kept("t", 0), played, {}, Judging())
        assert [path.name for path in directory.iterdir()] == ["metadata.json"]
        found = read(directory, Judging())
        assert found is not None
        assert found.record == record
        assert (record.outcome_status, record.valid) == (status, False)


@pytest.mark.parametrize(
    "content", [b"", b"{", b"[]", b'{"trajectories": {}}', b'{"trajectories": {"r": {}}}', b"\xff"]
)
@pytest.mark.parametrize("name", ["metadata.json", "trajectory_collection.json"])
def test_what_does_not_read_is_errored(tmp_path: Path, content: bytes, name: str) -> None:
    directory = tmp_path / "rollouts" / "t" / "rollout_4"
    keep(directory, Kept("t", 4), episode("t", "x"), {"backend": "tinker"}, Judging())
    (directory / name).write_bytes(content)
    (found,) = read_all(tmp_path, Judging())
    assert (found.record.task_id, found.record.rollout_index, found.record.valid) == ("t", 4, False)
    assert name in str(found.record.error)
    check_provenance(tmp_path, {"backend": "tinker"})


def test_records_come_in_the_order_of_their_numbers(tmp_path: Path) -> None:
    for task_id in ("t/10", "t/9", "s/1", "t/9a"):
        for index in (11, 2):
            directory = tmp_path / "rollouts" / task_id.replace("/", "_") / f"rollout_{index}"
            keep(directory, Kept(task_id, index), episode(task_id, "x"), {}, Judging())
    found = [(one.record.task_id, one.record.rollout_index) for one in read_all(tmp_path, Judging())]
    assert found == [(task, index) for task in ("s/1", "t/9", "t/9a", "t/10") for index in (2, 11)]


def test_provenance_of_files_that_recorded_none(tmp_path: Path) -> None:
    directory = tmp_path / "rollouts" / "t" / "rollout_0"
    directory.mkdir(parents=True)
    (directory / "metadata.json").write_text(json.dumps({"task_id": "t", "rollout_index": 0}))
    check_provenance(tmp_path, {"backend": "tinker", "judges": True, "model": "m"})
    with pytest.raises(ConfigError, match="judges True, now False"):
        check_provenance(tmp_path, {"backend": "tinker", "judges": False})
    (directory / "metadata.json").write_text(json.dumps({"task_id": "t", "provenance": {"judges": True}}))
    with pytest.raises(ConfigError, match="backend None, now 'tinker'"):
        check_provenance(tmp_path, {"backend": "tinker", "judges": True})


@given(st.lists(st.text(st.sampled_from("aA/_.: ö"), min_size=1, max_size=4), unique=True, max_size=8))
@settings(max_examples=60)
def test_directory_names_tell_tasks_apart(ids: list[str]) -> None:
    names = directory_names(ids)
    assert len({name.casefold() for name in names.values()}) == len(ids)
    assert all(name.strip(".") and "/" not in name and len(name) < 255 for name in names.values())
    assert directory_names(ids[::-1]) == names


@pytest.mark.parametrize(
    ("inference", "name"),
    [
        ({"model_name": "Qwen/Qwen3-4B-Instruct-2507"}, "Qwen-Qwen3-4B-Instruct-2507"),
        (
            {"model_name": "m", "model_path": "tinker://run-1/sampler_weights/000040"},
            "run-1-sampler_weights-000040",
        ),
        ({"model_name": "m", "model_path": "runs/first-run/errand"}, "runs-first-run-errand"),
        ({"model_name": "../.."}, "policy"),
        ({"model_name": "x" * 150}, "x" * 100),
    ],
)
def test_the_policys_directory(inference: dict[str, Any], name: str) -> None:
    if "model_path" in inference:
        inference = {**inference, "renderer_name": "chat_template"}
    assert policy_name(EvalRun.model_validate({"inference": inference})) == name
