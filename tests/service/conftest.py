"""One served small model for the tests that go through the SDK."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from platoon.train.local_service import local_service
from tests.service.small import NAME

KEY = "tml-test-key"


@pytest.fixture(scope="session")
def service_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with asyncio.Runner() as runner:
        context = local_service(tmp_path_factory.mktemp("service"), NAME, key=KEY)
        yield runner.run(context.__aenter__())
        runner.run(context.__aexit__(None, None, None))


@pytest.fixture
def sdk(service_url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A `tinker.ServiceClient` of the served model."""
    monkeypatch.setenv("TINKER_TELEMETRY", "0")
    import tinker

    client = tinker.ServiceClient(base_url=service_url, api_key=KEY)
    yield client
    client.holder.close()
