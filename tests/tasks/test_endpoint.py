"""Which API records a run: off, auto and require, against real servers that answer, refuse or hang."""

from __future__ import annotations

import json
import logging
import socket
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from platoon.config import ConfigError
from tasks.endpoint import choose_api, configured_endpoint, server_directory


class Health(BaseHTTPRequestHandler):
    seen: list[tuple[str, str | None]] = []  # noqa: RUF012

    def do_GET(self) -> None:
        self.seen.append((self.path, self.headers.get("Authorization")))
        self.send_response(200 if self.path == "/api/health" else 404)
        self.end_headers()

    def log_message(self, *args: object) -> None:
        pass


@pytest.fixture
def api() -> Iterator[str]:
    server = HTTPServer(("127.0.0.1", 0), Health)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}/api"
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture
def dead() -> str:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{listener.getsockname()[1]}/api"


@pytest.fixture(autouse=True)
def clean(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("PREFECT_API_URL", "PREFECT_PROFILE", "PREFECT_API_KEY", "PLATOON_ORCHESTRATION"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PREFECT_HOME", str(tmp_path / "prefect"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)


def write_profile(tmp_path: Path, url: str) -> None:
    (tmp_path / "prefect").mkdir()
    (tmp_path / "prefect/profiles.toml").write_text(f'active = "lab"\n[profiles.lab]\nPREFECT_API_URL = "{url}"\n')


def write_record(url: str) -> None:
    server_directory().mkdir(parents=True)
    (server_directory() / "server.json").write_text(json.dumps({"url": url, "pid": 1, "started": 0}))


def test_the_environment_wins_and_its_key_is_sent(
    api: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, dead: str
) -> None:
    write_profile(tmp_path, dead)
    monkeypatch.setenv("PREFECT_API_URL", api + "/")
    monkeypatch.setenv("PREFECT_API_KEY", "k1")
    chosen = choose_api("auto")
    assert chosen is not None
    assert chosen.url == api
    assert Health.seen[-1] == ("/api/health", "Bearer k1")


def test_the_active_profile_is_read(api: str, tmp_path: Path) -> None:
    write_profile(tmp_path, api)
    chosen = choose_api("require")
    assert chosen is not None
    assert chosen.url == api


def test_a_project_file_goes_before_the_profile(tmp_path: Path, dead: str) -> None:
    write_profile(tmp_path, dead)
    (tmp_path / "prefect.toml").write_text('[api]\nurl = "http://project/api"\n')
    found = configured_endpoint()
    assert found is not None
    assert found.url == "http://project/api"


def test_auto_falls_back_to_the_users_own_server(api: str, dead: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PREFECT_API_URL", dead)
    write_record(api)
    chosen = choose_api("auto")
    assert chosen is not None
    assert chosen.url == api


def test_auto_without_any_says_so_in_one_line(dead: str, caplog: pytest.LogCaptureFixture) -> None:
    write_record(dead)
    with caplog.at_level(logging.INFO, "platoon.orchestration"):
        assert choose_api("auto") is None
    assert len(caplog.messages) == 1
    assert "not recorded in Prefect" in caplog.messages[0]


def test_require_without_any_is_a_configuration_error(dead: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PREFECT_API_URL", dead)
    with pytest.raises(ConfigError) as caught:
        choose_api("require")
    assert dead in str(caught.value)
    assert "platoon server start" in str(caught.value)


def test_off_asks_nobody(api: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PREFECT_API_URL", api)
    asked = len(Health.seen)
    assert choose_api("off") is None
    assert len(Health.seen) == asked


def test_the_variable_applies_when_the_config_says_auto(api: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PREFECT_API_URL", api)
    monkeypatch.setenv("PLATOON_ORCHESTRATION", "off")
    assert choose_api("auto") is None
    assert choose_api("require") is not None
    monkeypatch.setenv("PLATOON_ORCHESTRATION", "maybe")
    with pytest.raises(ConfigError, match="PLATOON_ORCHESTRATION='maybe'"):
        choose_api("auto")


def test_a_hung_server_counts_as_away(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as hung:
        hung.bind(("127.0.0.1", 0))
        hung.listen()  # connects, never answers
        monkeypatch.setenv("PREFECT_API_URL", f"http://127.0.0.1:{hung.getsockname()[1]}/api")
        assert choose_api("auto") is None
