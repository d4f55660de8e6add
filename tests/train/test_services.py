"""What a run says of a training service that is not there, or does not want it."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest

from platoon.stats.jsonl import read_jsonl
from platoon.train.local_service import local_service
from tests.train.running import finish, run_dir


def last_line(text: str) -> str:
    return text.strip().splitlines()[-1]


@pytest.fixture
def closed_port() -> Iterator[str]:
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))  # bound, never listening: connections are refused
        yield f"http://127.0.0.1:{held.getsockname()[1]}"


class Refusing(BaseHTTPRequestHandler):
    """A service that is healthy and refuses every key."""

    def do_GET(self) -> None:
        self._answer(200, b"{}")

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length") or 0))
        self._answer(401, b'{"detail": "unknown key tml-wrong"}')

    def _answer(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        return


@pytest.fixture
def refusing() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Refusing)
    Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()


def test_unreachable_service_is_said_and_nothing_is_written(closed_port: str, tmp_path: Path) -> None:
    done = finish(tmp_path / "runs", f"tinker_base_url={closed_port}", env={"TINKER_API_KEY": "tml-key"})
    assert done.returncode == 78
    assert last_line(done.stderr).startswith("platoon: tinker_base_url: no training service answers")
    assert not (tmp_path / "runs").exists()


def test_missing_key_is_one_line(tmp_path: Path) -> None:
    done = finish(tmp_path / "runs", "tinker_base_url=http://127.0.0.1:9", env={"TINKER_API_KEY": ""})
    assert done.returncode == 78
    assert last_line(done.stderr).startswith("platoon: TINKER_API_KEY is not set")
    assert not (tmp_path / "runs").exists()


def test_refused_key_is_one_line_without_the_key(refusing: str, tmp_path: Path) -> None:
    done = finish(tmp_path, f"tinker_base_url={refusing}", env={"TINKER_API_KEY": "tml-wrong"})
    assert done.returncode == 78, done.stderr
    assert "TINKER_API_KEY was refused by http://127.0.0.1" in last_line(done.stderr)
    assert "tml-wrong" not in done.stderr


async def test_a_service_of_ones_own_serves_runs(tmp_path: Path) -> None:
    async with local_service(tmp_path / "service", "platoon-tiny") as url:
        overrides = (f"tinker_base_url={url}", "train.max_training_steps=2", "eval.every=0")
        done = finish(tmp_path, *overrides, env={"TINKER_API_KEY": "tml-key"})
    assert done.returncode == 0, done.stderr
    assert read_jsonl(run_dir(tmp_path) / "checkpoints.jsonl").rows[-1]["name"] == "final"


def test_unknown_model_names_what_is_served(tmp_path: Path) -> None:
    done = finish(tmp_path, "train.model_name=platoon/toy")
    assert done.returncode != 0
    assert "platoon-tiny" in done.stderr
