"""Deployed runs under a real worker: killed, resumed, refused, cancelled, finished. One run directory, one server."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
from collections.abc import Iterator
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import httpx
import pytest

from platoon.stats.jsonl import read_jsonl
from platoon.testing.audit import audit_run
from tests.eval.playing import PROJECT as EVALUATED
from tests.eval.playing import data, opened, report, settled, written
from tests.flows.prefect_server import PrefectServer
from tests.flows.worker import ROOT, Submitted, bootstrap, submit, wait_for, worker
from tests.train.running import PROJECT, lines, run_dir, start, wait_until

pytestmark = [pytest.mark.orchestrated, pytest.mark.timeout(290)]
BOOTSTRAP = ROOT / "deployments" / "bootstrap.py"
STEPS = 5000  # more than a run trains until the next one of the test has started
DRAWS_A_STEP = 3 * 3


@pytest.fixture(scope="module")
def deployed(prefect_api: PrefectServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[PrefectServer]:
    bootstrap(prefect_api)
    with worker(prefect_api, tmp_path_factory.mktemp("worker")):
        yield prefect_api


async def silence(server: PrefectServer, seconds: float) -> None:
    """The automation with another silence, as `bootstrap.py --silence` makes it."""
    from prefect.client.orchestration import PrefectClient

    found = spec_from_file_location("bootstrap", BOOTSTRAP)
    assert found is not None
    assert found.loader is not None
    module = module_from_spec(found)
    found.loader.exec_module(module)
    async with PrefectClient(server.url) as client:
        await module.ensure_automation(client, seconds)


def steps_done(log_path: Path) -> int:
    return lines(run_dir(log_path) / "tasks" / "events.jsonl") // DRAWS_A_STEP


def progressed(log_path: Path, run: Submitted, steps: int = 3) -> None:
    """Until this run has trained some steps."""
    before = steps_done(log_path)
    wait_for(lambda: steps_done(log_path) >= before + steps, lambda: str(run.state()))


def test_killed_resumed_refused_cancelled_and_finished(deployed: PrefectServer, tmp_path: Path) -> None:
    def train(resume: str = "auto", steps: int = STEPS) -> Submitted:
        overrides = (f"log_path={tmp_path}", f"train.max_training_steps={steps}", "eval.every=0")
        return submit(deployed, "train/local", PROJECT, *overrides, resume=resume)

    first = train(resume="never")
    progressed(tmp_path, first)
    os.kill(json.loads((run_dir(tmp_path) / "owner.json").read_text())["pid"], signal.SIGKILL)
    assert first.until("CRASHED", "FAILED", "COMPLETED")["type"] == "CRASHED"

    second = train(resume="must")
    progressed(tmp_path, second)
    refused = train()
    state = refused.until("FAILED", "COMPLETED", "CRASHED")
    assert state["type"] == "FAILED"
    assert "is in use by process" in state["message"]
    assert second.state()["type"] == "RUNNING"

    second.cancel()
    assert second.until("CANCELLED", "CRASHED", "FAILED", "COMPLETED")["type"] == "CANCELLED"
    saved = read_jsonl(run_dir(tmp_path) / "checkpoints.jsonl").rows[-1]
    assert saved["name"].endswith("_interrupted"), "a cancelled run saves before it leaves"
    assert saved["batch"] >= 3

    end = saved["batch"] + 2
    third = train(steps=end)
    state = third.until("COMPLETED", "CRASHED", "FAILED")
    assert state["type"] == "COMPLETED"
    assert str(run_dir(tmp_path)) in state["message"]
    audit = audit_run(run_dir(tmp_path))
    assert audit.problems == []
    assert audit.fates == dict.fromkeys(range(3 * end), "consumed")
    assert audit.starts == 3


def test_a_cancelled_and_a_killed_evaluation_keep_what_had_settled_and_one_goes_on(
    deployed: PrefectServer, tmp_path: Path
) -> None:
    """Both are stopped with half their rollouts in flight, which leave nothing behind."""

    def evaluation(name: str) -> tuple[Path, Path]:
        work = tmp_path / name
        work.mkdir()
        shutil.copy(EVALUATED / "endings.py", work)
        rollout = {"max_steps": 1, "inference_params": {"max_completion_tokens": 8}}
        workflow = {"num_rollouts_per_task": 2, "rollout_config": rollout}
        return work, written(work, data(work, ["pass-a", "hold-b"], workflow=workflow))

    (calm, first), (rough, second) = evaluation("cancelled"), evaluation("killed")
    cancelled = submit(deployed, "evaluate/local", first)
    killed = submit(deployed, "evaluate/local", second)
    for work, run in ((calm, cancelled), (rough, killed)):
        wait_for(lambda: len(settled(work)) == 2 and len(opened(work)) == 4, lambda: str(run.state()))  # noqa: B023
    cancelled.cancel()
    os.kill(json.loads((rough / "out" / "owner.json").read_text())["pid"], signal.SIGKILL)
    assert cancelled.until("CANCELLED", "CRASHED", "FAILED", "COMPLETED")["type"] == "CANCELLED"
    assert killed.until("CRASHED", "CANCELLED", "FAILED", "COMPLETED")["type"] == "CRASHED"
    for work in (calm, rough):
        assert settled(work) == ["pass-a/0", "pass-a/1"]
        files = {path.name for path in (work / "out" / "rollouts").rglob("*") if path.is_file()}
        assert files == {"metadata.json", "trajectory_collection.json"}
        assert not (work / "out" / "reports").exists()

    (rough / "release").touch()
    again = submit(deployed, "evaluate/local", second)
    state = again.until("COMPLETED", "CRASHED", "FAILED")
    assert state["type"] == "COMPLETED", state
    assert sorted(opened(rough)) == ["hold-b"] * 4 + ["pass-a"] * 2, "only what was in flight is played again"
    assert len(settled(rough)) == 4
    assert report(rough)["summary"]


def test_the_heartbeat_automation_marks_a_killed_run_and_starts_nothing(
    deployed: PrefectServer, tmp_path: Path
) -> None:
    """A run that nobody supervises, as one of its own on a cluster: only the automation can tell that it is gone."""
    asyncio.run(silence(deployed, 10.0))
    try:
        arguments = ("train.max_training_steps=1000", "eval.every=0", "orchestration=require")
        process = start(tmp_path, *arguments, env={"PREFECT_API_URL": deployed.url})
        wait_until(lambda: steps_done(tmp_path) >= 2, process)
        process.send_signal(signal.SIGKILL)
        process.wait()
        rows = lines(run_dir(tmp_path) / "checkpoints.jsonl")
        (run,) = deployed.flow_runs(name={"any_": ["e/t"]}, deployment_id={"is_null_": True})
        killed = Submitted(deployed, run["id"])
        state = killed.until("CRASHED")
        assert state["message"] == "No heartbeat: the process is gone."
        alive = {"type": {"any_": ["RUNNING", "PENDING", "SCHEDULED"]}}
        trainers = [run for run in deployed.flow_runs(state=alive) if run["parent_task_run_id"] is None]
        assert trainers == [], "nothing starts a second trainer"
        assert lines(run_dir(tmp_path) / "checkpoints.jsonl") == rows
    finally:
        for automation in httpx.post(f"{deployed.url}/automations/filter", json={}, timeout=30).json():
            httpx.delete(f"{deployed.url}/automations/{automation['id']}", timeout=30)
