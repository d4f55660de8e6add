"""The project's modules can be imported, as they can from a config in its directory."""

from __future__ import annotations

import sys

import pytest

from tests.eval.playing import PROJECT


@pytest.fixture(autouse=True)
def _project(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [*sys.path, str(PROJECT)])
