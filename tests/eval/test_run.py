"""Whole evaluations with a scripted policy: what counts, what is kept, what a second start does."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from platoon.config import ConfigError, RunLock, load
from platoon.eval.run import EvaluationFailed, eval_run
from platoon.testing import ScriptedPolicy
from tests.eval.playing import (
    comparable,
    data,
    entry,
    evaluated,
    loaded,
    opened,
    report,
    rows,
    scripted,
    settled,
)


async def test_every_rollout_counts_where_it_belongs(tmp_path: Path) -> None:
    result = await evaluated(tmp_path, data(tmp_path, ["pass", "fail", "limit", "crash", "refuse"]))
    summary = result.summary
    assert summary is not None
    assert (summary["total_rollouts"], summary["valid_rollouts"], summary["errored_rollouts"]) == (5, 3, 2)
    assert summary["pass_at_k"]["1"]["mean"] == summary["success_rate"] == pytest.approx(1 / 3)
    assert summary["pass_at_k"]["1"]["tasks"] == 3
    assert (summary["successful_rollouts"], summary["failed_rollouts"]) == (1, 2)
    assert summary["outcome_status_counts"] == {"error": 2, "scored": 3}
    assert sum(summary["outcome_status_counts"].values()) == len(opened(tmp_path)) == 5
    frame = pl.read_parquet(tmp_path / "out" / "reports" / "rollouts.parquet")
    found = {row["task_id"]: row for row in frame.iter_rows(named=True)}
    assert found["limit"]["num_steps_total"] == 0
    assert found["limit"]["reward"] == 0.0
    assert found["limit"]["success"] is False
    for task, kind in (("crash", "env_error"), ("refuse", "env_connect")):
        assert (found[task]["reward"], found[task]["success"], found[task]["failure_kind"]) == (None, None, kind)
        assert found[task]["error"]


async def test_one_failed_rollout_of_a_task_leaves_the_others_to_measure_it(tmp_path: Path) -> None:
    content = data(
        tmp_path, ["pass", "half", "refuse"], workflow={"num_rollouts_per_task": 3, "success_threshold": 0.5}
    )
    summary = (await evaluated(tmp_path, content)).summary
    assert summary is not None
    assert summary["tasks_without_valid_rollouts"] == 1
    assert (summary["reward_mean"], summary["success_rate"], summary["success_at_k"]) == (0.75, 1.0, 1.0)
    assert list(summary["pass_at_k"]) == ["1", "2", "3"]
    tasks = {row["task_id"]: row for row in rows(tmp_path / "out" / "reports" / "task_results.jsonl")}
    assert [rollout["rollout_index"] for rollout in tasks["half"]["rollouts"]] == [0, 1, 2]
    assert (tasks["refuse"]["has_valid_rollouts"], tasks["refuse"]["num_failed_rollouts"]) == (False, 3)


async def test_calls_are_a_table(tmp_path: Path) -> None:
    await evaluated(tmp_path, data(tmp_path, ["pass", "limit", "refuse"], workflow={"num_rollouts_per_task": 2}))
    found = report(tmp_path)
    calls = pl.read_parquet(tmp_path / "out" / found["tables"]["calls"])
    assert calls.select("task_id", "rollout_index", "call_index", "kind").rows() == [
        ("pass", 0, 0, "policy"),
        ("pass", 1, 0, "policy"),
    ]
    assert calls["prompt_tokens"].min() > 0  # type: ignore[operator]
    assert calls["completion_tokens"].to_list() == [calls["completion_tokens"][0]] * 2
    assert calls["finish_reason"].to_list() == ["stop", "stop"]
    assert (calls["seconds"] >= 0).all()
    policy = found["usage"]["policy"]["total"]
    assert policy["calls"] == len(calls)
    assert policy["prompt_tokens"] == calls["prompt_tokens"].sum()


async def test_a_resume_plays_only_what_is_owed_and_reports_the_same(tmp_path: Path) -> None:
    half = data(tmp_path, ["pass-1", "fail-1", "half-1"], workflow={"num_rollouts_per_task": 2})
    await evaluated(tmp_path, half)
    assert len(opened(tmp_path)) == 6
    whole = data(tmp_path, ["fail-1", "pass-2", "pass-1", "half-1"], workflow={"num_rollouts_per_task": 3})
    resumed = (await evaluated(tmp_path, whole)).summary
    assert sorted(opened(tmp_path)[6:]) == ["fail-1", "half-1", "pass-1", "pass-2", "pass-2", "pass-2"]
    alone = (await evaluated(tmp_path, {**whole, "stage": "report"})).summary
    assert resumed is not None
    assert alone is not None
    assert comparable(resumed) == comparable(alone)
    assert resumed["total_rollouts"] == 12
    assert json.dumps(report(tmp_path)["summary"]) == json.dumps(alone)


async def test_a_summary_after_a_stop_is_that_of_the_files(tmp_path: Path) -> None:
    content = data(tmp_path, ["pass-a", "hold-b"], workflow={"num_rollouts_per_task": 4, "num_concurrent_workers": 8})
    running = asyncio.create_task(evaluated(tmp_path, content))
    while len(settled(tmp_path)) < 4 or len(opened(tmp_path)) < 8:  # noqa: ASYNC110  # files tell
        await asyncio.sleep(0.001)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert settled(tmp_path) == [f"pass-a/{index}" for index in range(4)]
    assert not list((tmp_path / "out" / "rollouts").glob("hold-*"))
    (tmp_path / "release").touch()
    resumed = (await evaluated(tmp_path, content)).summary
    assert sorted(opened(tmp_path)) == ["hold-b"] * 8 + ["pass-a"] * 4
    assert resumed is not None
    assert resumed["total_rollouts"] == 8
    assert comparable(resumed) == comparable((await evaluated(tmp_path, {**content, "stage": "report"})).summary)


async def test_errored_rollouts_are_made_again_unless_told_otherwise(tmp_path: Path) -> None:
    content = data(tmp_path, ["crash", "pass"])
    first = (await evaluated(tmp_path, content)).summary
    kept = (await evaluated(tmp_path, data(tmp_path, ["crash", "pass"], retry_errored=False))).summary
    assert len(opened(tmp_path)) == 2
    assert first is not None
    assert comparable(first) == comparable(kept)
    (tmp_path / "mended").touch()
    again = (await evaluated(tmp_path, content)).summary
    assert opened(tmp_path)[2:] == ["crash"]
    assert again is not None
    assert (again["errored_rollouts"], again["success_rate"]) == (0, 0.5)


async def test_resume_false_plays_all_and_moves_the_old_ones_aside(tmp_path: Path) -> None:
    await evaluated(tmp_path, data(tmp_path, ["pass", "fail"], workflow={"num_rollouts_per_task": 2}))
    summary = (await evaluated(tmp_path, data(tmp_path, ["pass"], resume=False))).summary
    assert summary is not None
    assert (summary["total_rollouts"], len(opened(tmp_path))) == (1, 5)
    aside = [path for path in (tmp_path / "out").iterdir() if path.name.startswith("rollouts-before-")]
    assert len(list(aside[0].glob("*/*/metadata.json"))) == 4


async def test_verdicts_follow_the_current_settings(tmp_path: Path) -> None:
    await evaluated(tmp_path, data(tmp_path, ["half"]))
    assert report(tmp_path)["summary"]["success_rate"] == 0.0
    summary = (await evaluated(tmp_path, data(tmp_path, ["half"], workflow={"success_threshold": 0.5}))).summary
    assert summary is not None
    assert (summary["success_rate"], len(opened(tmp_path))) == (1.0, 1)


async def test_a_timeout_is_an_error_or_a_failure_as_asked(tmp_path: Path) -> None:
    timed: dict[str, Any] = {"rollout_config": {"timeout": 1}}
    first = (await evaluated(tmp_path, data(tmp_path, ["slow"], workflow=timed))).summary
    assert first is not None
    assert (first["errored_rollouts"], first["outcome_status_counts"]) == (1, {"timeout": 1})
    counted = data(tmp_path, ["slow"], workflow={**timed, "count_timeout_as_failure": True})
    second = (await evaluated(tmp_path, counted)).summary
    assert second is not None
    assert (second["errored_rollouts"], second["failed_rollouts"], second["success_rate"]) == (0, 1, 0.0)
    assert len(opened(tmp_path)) == 1


async def test_an_outage_is_never_a_failure_of_the_policy(tmp_path: Path) -> None:
    sampler = ScriptedPolicy([ConnectionError("the service is gone"), "Ada"])
    content = data(tmp_path, ["fail"], workflow={"num_rollouts_per_task": 2, "num_concurrent_workers": 1})
    summary = (await evaluated(tmp_path, content, sampler)).summary
    assert summary is not None
    assert (summary["errored_rollouts"], summary["valid_rollouts"]) == (1, 1)
    assert report(tmp_path)["backend"] == {"failed_calls": 1, "rollouts_with_failed_calls": 1}


async def test_fail_fast_and_stage_rollouts_make_no_report(tmp_path: Path) -> None:
    with pytest.raises(EvaluationFailed, match="1 of 2 rollouts errored, the first: nobody answers"):
        await evaluated(tmp_path, data(tmp_path, ["pass", "refuse"], workflow={"fail_fast": True}))
    assert settled(tmp_path) == ["pass/0", "refuse/0"]
    result = await evaluated(tmp_path, {**data(tmp_path, ["pass", "refuse"]), "stage": "rollouts"})
    assert result.summary is None
    assert not (tmp_path / "out" / "reports").exists()


async def test_ids_of_a_mixture_carry_their_entry(tmp_path: Path) -> None:
    content = data(tmp_path, [])
    content["environments"] = [
        entry(tmp_path, ["pass-1"], name="a"),
        entry(tmp_path, ["pass-1", "fail-1"], name="b", exclude_tasks=["fail-1"]),
    ]
    await evaluated(tmp_path, content)
    tasks = [row["task_id"] for row in rows(tmp_path / "out" / "reports" / "task_results.jsonl")]
    assert tasks == ["a::pass-1", "b::pass-1"]
    assert settled(tmp_path) == ["a__pass-1/0", "b__pass-1/0"]
    lock = json.loads((tmp_path / "out" / "lock.json").read_text())
    assert lock["excluded_tasks"] == {"b": {"test": {"listed": 2, "excluded": ["fail-1"]}}}


async def test_an_entrys_reward_processor_makes_its_rewards(tmp_path: Path) -> None:
    content = data(tmp_path, [], workflow={"num_rollouts_per_task": 2})
    content["environments"] = [
        entry(tmp_path, ["pass", "half"], name="a", reward_processor="endings:halved"),
        entry(tmp_path, ["pass"], name="b"),
    ]
    summary = (await evaluated(tmp_path, content)).summary
    assert summary is not None
    assert (summary["reward_mean"], summary["successful_rollouts"]) == (pytest.approx((0.5 + 0.25 + 1.0) / 3), 4)
    found = report(tmp_path)
    assert found["reward_components"] == {
        "reward/whole": {
            "overall": {"count": 6, "mean": 0.5, "min": 0.0, "max": 1.0},  # b has no such component: 0.0
            "success": {"count": 4, "mean": 0.5, "min": 0.0, "max": 1.0},
            "failure": {"count": 2, "mean": 0.5, "min": 0.5, "max": 0.5},
            **{f"at_k_{key}": {"count": 3, "mean": 0.5, "min": 0.0, "max": 1.0} for key in ("mean", "max", "min")},
        }
    }
    assert found["cost"] == {"total_usd": None, "mean_usd_per_rollout": None, "unpriced_calls": 0}
    lock = json.loads((tmp_path / "out" / "lock.json").read_text())
    named = [row for row in lock["components"] if row["kind"] == "reward_processor"]
    assert [(row["ref"], row["environments"]) for row in named] == [("endings:halved", ["a"])]
    assert (lock["judges"], "judges" in lock["policy"]) == ({"enabled": True}, False)
    assert (lock["tool_call_parsing"]["parser"], lock["tool_call_parsing"]["verified"]) == ("hermes", True)
    alone = (await evaluated(tmp_path, {**content, "stage": "report"})).summary
    assert comparable(summary) == comparable(alone)
    content["environments"][0]["reward_processor"] = "endings:gone"
    for stage in ("full", "report"):
        with pytest.raises(ConfigError, match=r"environments\.0\.reward_processor: reward processor 'endings:gone'"):
            await evaluated(tmp_path, {**content, "stage": stage})


async def test_tasks_whose_names_fall_together_do_not_share_a_directory(tmp_path: Path) -> None:
    tasks = ["pass/1", "pass_1", "pass:1", "fail-" + "x" * 300]
    summary = (await evaluated(tmp_path, data(tmp_path, tasks))).summary
    assert summary is not None
    assert summary["total_tasks"] == len(settled(tmp_path)) == 4
    await evaluated(tmp_path, data(tmp_path, tasks))
    assert len(opened(tmp_path)) == 4


async def test_another_policy_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    content = data(tmp_path, ["pass"])
    await evaluated(tmp_path, content)
    before = {path: path.read_bytes() for path in (tmp_path / "out").rglob("*") if path.is_file()}
    changes = {"model_path": "tinker://other/sampler_weights/1", "judges": False, "model_name": "platoon/toy"}
    for key, value in changes.items():
        for stage in ("full", "report"):
            other = {**content, "stage": stage, "inference": {**content["inference"], key: value}}
            with pytest.raises(ConfigError, match="holds rollouts of another policy"):
                await evaluated(tmp_path, other)
    assert {path: path.read_bytes() for path in (tmp_path / "out").rglob("*") if path.is_file()} == before


async def test_a_directory_in_use_is_refused(tmp_path: Path) -> None:
    with (
        RunLock(tmp_path / "out"),
        pytest.raises(ConfigError, match=r"is in use by process .* another inference\.output_dir"),
    ):
        await evaluated(tmp_path, data(tmp_path, ["pass"]))
    assert opened(tmp_path) == []


async def test_mistakes_are_reported_before_a_directory_is_made(tmp_path: Path) -> None:
    good = data(tmp_path, ["pass"])
    wrong: list[tuple[dict[str, Any], str]] = [
        (
            {"inference": {**good["inference"], "model_path": "nowhere"}},
            "neither a tinker:// path",
        ),
        ({"inference": {**good["inference"], "renderer_name": None}}, "inference.renderer_name"),
        ({"environments": [entry(tmp_path, [])]}, "no environment lists a task in 'test'"),
        ({"environments": [entry(tmp_path, ["pass"], exclude_tasks=["x"])]}, "no task is named 'x'"),
        ({"environments": []}, "at least one environment"),
        ({"tinker_base_url": "http://127.0.0.1:1"}, "TINKER_API_KEY"),
        ({"stage": "report"}, "does not exist"),
    ]
    for change, text in wrong:
        with pytest.raises(ConfigError, match=text):
            await evaluated(tmp_path, {**good, **change})
    assert not (tmp_path / "out").exists()


async def test_the_snapshot_goes_on_with_the_same_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    content = data(tmp_path, ["pass"], output_dir=None)
    first = await eval_run(loaded(tmp_path, content), scripted())
    assert first.output_dir.parent == tmp_path / "runs" / "eval" / "platoon-tiny"
    second = await eval_run(load(first.output_dir / "config.resolved.yaml"), scripted())
    assert second.output_dir == first.output_dir
    assert len(opened(tmp_path)) == 1
    third = await eval_run(loaded(tmp_path, content), scripted())
    assert third.output_dir != first.output_dir
    assert len(opened(tmp_path)) == 2
