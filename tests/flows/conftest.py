"""One real Prefect server for the orchestrated tests of a session, and no way to Prefect for the others."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest

from tasks.endpoint import Endpoint
from tasks.recorder import Recorder
from tasks.recording import SETTINGS, recording
from tests.flows.prefect_server import PrefectServer, start_server


@pytest.fixture(autouse=True, scope="session")
def prefect_home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """No user profile, and no server started by accident."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PREFECT_HOME", str(tmp_path_factory.mktemp("prefect-client")))
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        for name, value in SETTINGS.items():
            patch.setenv(name, value)
        patch.delenv("PREFECT_API_URL", raising=False)
        yield


@pytest.fixture(scope="session")
def prefect_api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PrefectServer]:
    server = start_server(tmp_path_factory.mktemp("prefect-server"))
    yield server
    if "prefect" in sys.modules:  # what this process still has to send goes first: without a server its exit hangs
        from prefect.events.worker import EventsWorker
        from prefect.logging.handlers import APILogWorker

        EventsWorker.drain_all()
        APILogWorker.drain_all()
    server.kill()


@pytest.fixture
def recorder(prefect_api: PrefectServer, monkeypatch: pytest.MonkeyPatch) -> Iterator[Recorder]:
    """Record what the test runs at the session's server."""
    monkeypatch.setenv("PREFECT_API_URL", prefect_api.url)
    with recording(Endpoint(prefect_api.url, {}), patience=60) as made:
        assert made is not None
        yield made
