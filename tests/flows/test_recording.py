"""What Prefect sees of recorded coroutines, and that what they return and raise does not come from it."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import httpx
import pytest

from tasks.endpoint import Endpoint
from tasks.recorder import Box, Recorder, busy, transport_error
from tasks.recording import current_run_id, hurry, phase, recorded, recording, step_finished
from tests.flows.prefect_server import PrefectServer, free_port

ROOT = Path(__file__).resolve().parents[2]
orchestrated = pytest.mark.orchestrated


class Unusual(Exception):
    """Not JSON, not picklable: Prefect must not get in its way."""

    def __init__(self, one: int, *, two: object) -> None:
        super().__init__(one)
        self.two = two


@orchestrated
async def test_a_recorded_call_is_a_flow_run_with_tasks(prefect_api: PrefectServer, recorder: Recorder) -> None:
    value = object()  # could not be stored by Prefect

    @recorded("train-step", "step-{step:05d}")
    async def train_step(step: int) -> object:
        async def update() -> object:
            return value

        return await phase("update", update)

    @recorded("train", "exp/names", tags=("exp", "names"))
    async def train(config: str, overrides: list[str]) -> tuple[object, object]:
        step_finished(1, {"reward": 0.5, "bad": float("nan")})
        return await train_step(1), current_run_id()

    assert current_run_id() is None
    got, run_id = await train("a.yaml", overrides=["train.batch_size=2"])
    assert got is value

    (run,) = prefect_api.flow_runs(id={"any_": [str(run_id)]})
    assert run["name"] == "exp/names"
    assert run["state_type"] == "COMPLETED"
    assert run["parameters"] == {"config": "a.yaml", "overrides": ["train.batch_size=2"]}
    assert sorted(run["tags"]) == ["exp", "names"]
    (step,) = prefect_api.flow_runs(parent_flow_run_id={"any_": [str(run_id)]})
    assert step["name"] == "step-00001"
    assert step["parameters"] == {"step": 1}

    tasks = await _task_runs(prefect_api, step["id"])
    assert tasks == [("update", [])], "a tag would cost a request to the API before each task"


async def _task_runs(server: PrefectServer, flow_run: str) -> list[tuple[str, list[str]]]:
    """The task runs of a flow run, once the server has worked off its queue."""
    async with asyncio.timeout(60), httpx.AsyncClient() as client:
        while True:
            body = {"task_runs": {"flow_run_id": {"any_": [flow_run]}}}
            found = (await client.post(f"{server.url}/task_runs/filter", json=body)).json()
            if found:
                return [(one["name"], one["tags"]) for one in found]
            await asyncio.sleep(0.2)


@orchestrated
async def test_the_bodys_own_exception_comes_out_as_it_is(prefect_api: PrefectServer, recorder: Recorder) -> None:
    cause = KeyError("why")
    error = Unusual(1, two=object())
    seen = []

    @recorded("train-step", "broken")
    async def train_step() -> None:
        seen.append(current_run_id())

        async def update() -> None:
            raise error from cause

        await phase("update", update)

    with pytest.raises(Unusual) as caught:
        await train_step()
    assert caught.value is error
    assert error.__cause__ is cause
    (run,) = prefect_api.flow_runs(id={"any_": [str(seen[0])]})
    assert run["state_type"] == "FAILED"
    assert not recorder.orphans


@orchestrated
async def test_a_transport_error_of_the_body_is_the_bodys(prefect_api: PrefectServer, recorder: Recorder) -> None:
    calls = 0

    @recorded("train-step", "refused")
    async def train_step() -> None:
        nonlocal calls
        calls += 1
        raise httpx.ConnectError("the training service is away")

    with pytest.raises(httpx.ConnectError, match="the training service"):
        await train_step()
    assert calls == 1
    assert not recorder.breaker.is_open


@orchestrated
async def test_cancellation_reaches_the_body_and_leaves_no_running_run(
    prefect_api: PrefectServer, recorder: Recorder
) -> None:
    started = asyncio.Event()
    seen = []

    @recorded("train-step", "cancelled")
    async def train_step() -> None:
        seen.append(current_run_id())
        started.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            seen.append(None)
            raise

    work = asyncio.create_task(train_step())
    await started.wait()
    work.cancel()
    with pytest.raises(asyncio.CancelledError):
        await work
    assert seen[1:] == [None]
    (run,) = prefect_api.flow_runs(id={"any_": [str(seen[0])]})
    assert run["state_type"] in ("CRASHED", "CANCELLED")


@orchestrated
async def test_a_run_deleted_under_its_body_does_not_fail_it(prefect_api: PrefectServer, recorder: Recorder) -> None:
    @recorded("train-step", "deleted")
    async def train_step() -> str:
        async with httpx.AsyncClient() as client:
            (await client.delete(f"{prefect_api.url}/flow_runs/{current_run_id()}")).raise_for_status()
        return "the work is done"

    assert await train_step() == "the work is done"


@orchestrated
async def test_an_api_that_is_away_from_the_start_costs_one_probe(prefect_api: PrefectServer) -> None:
    calls: list[int] = []

    @recorded("train-step", "step-{step:05d}")
    async def train_step(step: int) -> int:
        async def update() -> int:
            calls.append(step)
            return step

        return await phase("update", update)

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PREFECT_API_URL", "")
        began = time.monotonic()
        with recording(Endpoint(f"http://127.0.0.1:{free_port()}/api", {})) as recorder:
            assert [await train_step(step) for step in range(50)] == list(range(50))
    assert calls == list(range(50))
    assert time.monotonic() - began < 60, "the default client would stall more than a minute for each call"
    assert recorder is not None
    assert recorder.breaker.is_open


async def test_without_recording_the_coroutine_just_runs() -> None:
    @recorded("train-step", "step-{step:05d}")
    async def train_step(step: int) -> int:
        async def update() -> int:
            return step

        return await phase("update", update)

    with recording(None):
        assert await train_step(3) == 3


def test_prefect_is_not_imported_without_recording() -> None:
    script = (
        "import asyncio, sys\n"
        "from tasks.recording import phase, recorded, recording\n"
        "@recorded('train', 'x')\n"
        "async def train():\n"
        "    async def body(): return 1\n"
        "    return await phase('update', body)\n"
        "with recording(None):\n"
        "    assert asyncio.run(train()) == 1\n"
        "assert 'prefect' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", script], cwd=ROOT, check=True, timeout=60)


def test_the_settings_are_in_force_when_prefect_is_imported() -> None:
    script = (
        "import logging, sys\n"
        "logging.basicConfig(level='INFO', format='ours %(message)s')\n"
        "from tasks.endpoint import Endpoint\n"
        "from tasks.recording import configure_environment\n"
        "assert 'prefect' not in sys.modules\n"
        "configure_environment(Endpoint('http://127.0.0.1:1/api', {}))\n"
        "import prefect\n"
        "settings = prefect.settings.get_current_settings()\n"
        "assert settings.api.url == 'http://127.0.0.1:1/api'\n"
        "assert settings.api.request_timeout == 10, settings.api\n"
        "assert settings.client.max_retries == 0\n"
        "assert settings.events.worker_max_queue_size == 2000\n"
        "assert settings.server.ephemeral.enabled is False\n"
        "assert settings.logging.extra_loggers == ['platoon']\n"
        "assert [h.formatter._fmt for h in logging.getLogger().handlers] == ['ours %(message)s']\n"
        "assert logging.getLogger().level == logging.INFO\n"
    )
    environment = {key: value for key, value in os.environ.items() if not key.startswith("PREFECT_")}
    subprocess.run([sys.executable, "-c", script], cwd=ROOT, check=True, timeout=60, env=environment)


@orchestrated
async def test_what_prefects_client_raises_without_an_api_is_transport_trouble(
    prefect_api: PrefectServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    from prefect import get_client
    from prefect.context import refresh_global_settings_context

    monkeypatch.setenv("PREFECT_API_URL", f"http://127.0.0.1:{free_port()}/api")
    refresh_global_settings_context()
    with pytest.raises(RuntimeError, match="Failed to reach API") as caught:
        async with get_client() as client:
            await client.raise_for_api_version_mismatch()
    assert transport_error(caught.value)


def test_orders_and_programming_errors_are_not_transport_trouble() -> None:
    from prefect.exceptions import Abort, CancelledRun, Pause, TerminationSignal

    for order in (Abort("stop"), Pause("wait"), TerminationSignal(15), asyncio.CancelledError(), CancelledRun("ui")):
        assert not transport_error(order)
        order.__context__ = httpx.ConnectError("seen on the way")
        assert not transport_error(order)
    assert not transport_error(ValueError("a bug"))
    wrapped = RuntimeError("outer")
    wrapped.__cause__ = ExceptionGroup("several", [ValueError(), httpx.ReadTimeout("slow")])
    assert transport_error(wrapped)


def test_an_exception_chain_with_a_loop_ends() -> None:
    one, two = ValueError("one"), ValueError("two")
    one.__context__, two.__context__ = two, one
    assert not transport_error(one)


def answered(status: int) -> Exception:
    """What Prefect's client raises for a reply, as it arrives here: wrapped."""
    request = httpx.Request("POST", "http://api/flow_runs/1/set_state")
    error = RuntimeError("while setting the state")
    error.__cause__ = httpx.HTTPStatusError("no", request=request, response=httpx.Response(status, request=request))
    return error


@pytest.mark.parametrize(("status", "open_after"), [(503, False), (429, False), (500, True), (502, True)])
def test_a_busy_api_is_not_left_alone_and_what_it_missed_is_noted(status: int, open_after: bool) -> None:
    from uuid import uuid4

    recorder = Recorder(Endpoint(f"http://127.0.0.1:{free_port()}/api", {}))
    box: Box[int] = Box(started=True, done=True, run_id=uuid4())
    recorder.lost(answered(status), box)
    assert recorder.breaker.is_open is open_after
    assert recorder.orphans == {box.run_id: True}


@orchestrated
async def test_a_run_that_a_busy_api_missed_is_set_right_before_the_next_one(
    prefect_api: PrefectServer, recorder: Recorder
) -> None:
    @recorded("train-step", "busy-{step}")
    async def train_step(step: int) -> None:
        if step == 1:  # as if the server had answered 503 at its end
            run_id = current_run_id()
            assert run_id is not None
            recorder.orphans[run_id] = False

    await train_step(1)
    await train_step(2)
    states = {run["name"]: run["state_type"] for run in prefect_api.flow_runs(name={"any_": ["busy-1", "busy-2"]})}
    assert states == {"busy-1": "FAILED", "busy-2": "COMPLETED"}
    assert recorder.orphans == {}


def test_an_outage_is_told_once(caplog: pytest.LogCaptureFixture) -> None:
    recorder = Recorder(Endpoint(f"http://127.0.0.1:{free_port()}/api", {}), open_seconds=0.0)

    async def steps() -> list[bool]:
        return [await recorder.allow() for _ in range(4)]

    with caplog.at_level("INFO"):
        assert asyncio.run(steps()) == [False] * 4
    assert sum("unrecorded" in record.message for record in caplog.records) == 1


class Busy(BaseHTTPRequestHandler):
    """An API that answers its version and is busy otherwise."""

    def do_GET(self) -> None:
        status, body = (200, b'"3.9.1"') if self.path.endswith("/version") else (503, b"{}")
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        return


@orchestrated
async def test_neither_a_busy_nor_a_dead_api_makes_the_client_pause(prefect_api: PrefectServer) -> None:
    from prefect.context import AsyncClientContext
    from prefect.settings import PREFECT_API_URL, PREFECT_CLIENT_MAX_RETRIES, temporary_settings

    server = ThreadingHTTPServer(("127.0.0.1", 0), Busy)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    url = f"http://127.0.0.1:{server.server_port}/api"
    with temporary_settings({PREFECT_API_URL: url, PREFECT_CLIENT_MAX_RETRIES: 0}):
        async with AsyncClientContext.get_or_create() as context:
            hurry(context.client._client)
            hurry(context.client._client)
            began = time.monotonic()
            with pytest.raises(httpx.HTTPStatusError) as refused:
                await context.client.request("GET", "/hello")
            assert busy(refused.value)
            await asyncio.to_thread(server.shutdown)
            server.server_close()
            with pytest.raises(httpx.HTTPError) as dead:
                await context.client.request("GET", "/hello")
            assert transport_error(dead.value)
            assert not busy(dead.value)
            assert time.monotonic() - began < 3.4, "Prefect alone would wait 2 s and 1.5 s"
