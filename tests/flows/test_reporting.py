"""What the server holds of a recorded run: artifacts, events, log lines; and a reporter that meets no server."""

from __future__ import annotations

import asyncio
import json
import logging
import time
from pathlib import Path
from typing import Any

import httpx
import pytest

from platoon.stats.jsonl import append_row
from tasks.endpoint import Endpoint
from tasks.recorder import Recorder
from tasks.recording import current_run_id, recorded, recording
from tasks.reporting import Reporter, Silent, Subject, report_evaluation, reporting
from tests.flows.prefect_server import PrefectServer, free_port


def ask(server: PrefectServer, what: str, body: dict[str, Any]) -> Any:
    reply = httpx.post(f"{server.url}/{what}/filter", json=body, timeout=30)
    reply.raise_for_status()
    return reply.json()


def artifacts(server: PrefectServer, run_id: Any) -> dict[str, dict[str, Any]]:
    found = ask(server, "artifacts", {"artifacts": {"flow_run_id": {"any_": [str(run_id)]}}})
    assert len({one["key"] for one in found}) == len(found), "updated in place"
    return {one["key"]: one for one in found}


async def events(server: PrefectServer, run_id: Any, wanted: set[str]) -> dict[str, Any]:
    """Payloads by name, once all of `wanted` have arrived: they are sent in the background."""
    chosen = {"event": {"prefix": ["platoon."]}, "resource": {"id": [f"prefect.flow-run.{run_id}"]}}
    async with asyncio.timeout(60):
        while True:
            found = await asyncio.to_thread(ask, server, "events", {"filter": chosen, "limit": 50})
            payloads = {one["event"]: one["payload"] for one in found["events"]}
            if wanted <= set(payloads):
                return payloads
            await asyncio.sleep(0.1)


@pytest.mark.orchestrated
async def test_a_run_reports_in_place_and_tells_what_its_directory_says(
    prefect_api: PrefectServer, recorder: Recorder, tmp_path: Path
) -> None:
    subject = Subject("Exp", "trial_1", tmp_path, 0, 4, {"Weights & Biases": "https://wandb.example/r/1"})

    @recorded("train", "exp/reporting")
    async def train() -> Any:
        async with reporting(subject) as reporter:
            assert isinstance(reporter, Reporter)
            reporter.event("run.started", {"start": 1})
            reporter.step(1, {"train/batch/task_reward/avg": 0.5})
            await reporter.report(pages=True)
            append_row(tmp_path / "checkpoints.jsonl", {"name": "000002", "batch": 2, "policy_version": 2})
            append_row(tmp_path / "evaluations.jsonl", {"step": 2, "task_reward": 0.75})
            reporter.step(2, {"train/batch/task_reward/avg": 0.625})
            logging.getLogger("platoon.train").info("a line of the run")
        await report_evaluation({"success_rate": 0.5}, tmp_path)
        return current_run_id()

    run_id = await train()
    found = artifacts(prefect_api, run_id)
    assert found["exp-trial-1-progress"]["data"] == 50.0
    assert [row["step"] for row in json.loads(found["exp-trial-1-steps"]["data"])] == ["2", "1"]
    page = found["exp-trial-1-report"]["data"]
    assert "data:image/svg+xml;base64," in page
    assert "## Evaluations" in page
    assert tmp_path.as_uri() in found["exp-trial-1-links"]["data"]
    assert "https://wandb.example/r/1" in found["exp-trial-1-links"]["data"]
    assert any("success_rate" in str(one["data"]) for one in found.values())

    told = await events(prefect_api, run_id, {f"platoon.{what}" for what in ("run.started", "checkpoint.saved")})
    assert told["platoon.checkpoint.saved"] == {
        "run": "Exp/trial_1", "name": "000002", "batch": 2, "policy_version": 2,
    }  # fmt: skip
    assert told["platoon.run.started"]["start"] == 1
    deadline = time.monotonic() + 60
    while not ask(prefect_api, "logs", {"logs": {"flow_run_id": {"any_": [str(run_id)]}}}):
        assert time.monotonic() < deadline, "no log line arrived"
        await asyncio.sleep(0.1)


async def test_unrecorded_nothing_is_reported(tmp_path: Path) -> None:
    async with reporting(Subject("e", "t", tmp_path, 0, 4)) as reporter:
        assert isinstance(reporter, Silent)
        reporter.step(1, {})
        reporter.event("run.started", {})


@pytest.mark.orchestrated
async def test_without_an_api_a_report_ends_soon_and_the_breaker_opens(
    prefect_api: PrefectServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("PREFECT_API_URL", "")
    with recording(Endpoint(f"http://127.0.0.1:{free_port()}/api", {})) as recorder:
        assert recorder is not None
        from uuid import uuid4

        reporter = Reporter(Subject("e", "t", tmp_path, 0, 4), recorder, uuid4())
        reporter.step(1, {})
        began = time.monotonic()
        await reporter.report(pages=True)
        assert recorder.breaker.is_open
        await reporter.report(pages=True)
        assert time.monotonic() - began < 60, "the default client would stall more than a minute for each call"
    assert sum("unrecorded" in record.message for record in caplog.records) == 1
