"""The link to the API: what a call may wait, who finds a lost API back, what is set right and what is not touched."""

from __future__ import annotations

import asyncio
import socket
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import httpx
import pytest

from tasks.endpoint import Endpoint
from tasks.recorder import Box, Recorder
from tasks.recording import call_of, current_run_id, hurry, recorded
from tests.flows.prefect_server import PrefectServer
from tests.flows.worker import ask, wait_for


@pytest.mark.parametrize(
    ("waited", "seconds", "calls"),
    [(0.3, 1.0, None), (2.0, 60.0, None), (1.5, 2.0, 8), (1.5, 1000.0, None), (4.0, 5.0, 2)],
)
def test_an_api_that_stays_slow_is_left_alone(waited: float, seconds: float, calls: int | None) -> None:
    """A second a step and a twentieth of it are usual; three seconds beyond that are too many."""
    recorder = Recorder(Endpoint("http://127.0.0.1:1/api", {}))
    opened = None
    for call in range(1, 100):
        recorder.took(waited, seconds)
        if opened is None and recorder.breaker.is_open:
            opened = call
    assert opened == calls


async def test_a_watch_finds_the_api_back_beside_the_steps() -> None:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Healthy)
    recorder = Recorder(Endpoint(f"http://127.0.0.1:{server.server_port}/api", {}), open_seconds=0.05)
    recorder.trip(httpx.ConnectError("away"))
    watch = asyncio.create_task(recorder.watch())
    await asyncio.sleep(0)
    assert not await recorder.allow(), "a step does not ask, it goes on"
    threading.Thread(target=server.serve_forever, daemon=True).start()
    await asyncio.to_thread(wait_for, lambda: not recorder.breaker.is_open)
    assert await recorder.allow()
    watch.cancel()
    await asyncio.gather(watch, return_exceptions=True)
    server.shutdown()
    server.server_close()


@pytest.mark.orchestrated
async def test_a_flow_run_that_is_about_to_begin_is_not_taken_for_a_lost_one(
    prefect_api: PrefectServer, recorder: Recorder
) -> None:
    @recorded("train", "about-to-begin")
    async def train() -> list[str]:
        parent = current_run_id()
        assert parent is not None
        made = await asyncio.to_thread(unbegun_child, prefect_api, str(parent))

        async def after_settling() -> str:
            recorder.parents.add(parent)
            await recorder.allow()
            return str(prefect_api.flow_runs(id={"any_": [made]})[0]["state_type"])

        with recorder.call(Box()):
            states = [await after_settling()]
        return [*states, await after_settling()]

    assert await train() == ["PENDING", "CANCELLED"]


def unbegun_child(server: PrefectServer, parent: str) -> str:
    """A subflow's run as Prefect's engine makes it: a task run of the parent, then the run, Pending."""
    task = {"flow_run_id": parent, "task_key": "step", "dynamic_key": "1"}
    made = ask(server, "POST", "task_runs/", task)["id"]
    flow = ask(server, "GET", f"flow_runs/{parent}")["flow_id"]
    body = {"name": "unbegun", "flow_id": flow, "parent_task_run_id": made, "state": {"type": "PENDING"}}
    return str(ask(server, "POST", "flow_runs/", body)["id"])


async def test_a_call_waits_for_a_silent_api_as_long_as_its_patience_in_all() -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        box: Box[None] = Box(patience=0.2)
        async with httpx.AsyncClient(timeout=30) as client:
            hurry(client)
            with call_of(box):
                with pytest.raises(httpx.ReadTimeout, match="too slowly"):
                    await client.get(url)
                for _ in range(20):
                    with pytest.raises(httpx.ConnectTimeout, match="no patience left"):
                        await client.get(url)
                box.started = True  # what the body asks is not the recording's
                with pytest.raises(TimeoutError):
                    await asyncio.wait_for(client.get(url), 0.3)


class Healthy(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200 if self.path == "/api/health" else 500)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        return
