"""Shared by the tests of the configuration room."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

MINIMAL = {"train": {"model_name": "m", "renderer_name": "chat_template"}}
Write = Callable[..., Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Write a configuration file: a text as it is, anything else as YAML."""

    def make(content: object, name: str = "run.yaml") -> Path:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content if isinstance(content, str) else yaml.safe_dump(content), encoding="utf-8")
        return path

    return make
