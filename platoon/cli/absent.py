"""Commands whose part of platoon is not built yet: each says so in one line and ends with 78."""

from __future__ import annotations

from typing import Annotated

import cyclopts
from cyclopts import Parameter

from platoon.config.problems import ConfigError

_PARTS = {
    "harbor": "Harbor data sets and their images are",
    "toolchain": "toolchains of command-line agents are",
    "sandbox": "sandboxes are",
    "viz": "the viewer is",
}


def absent_apps() -> list[cyclopts.App]:
    """One application a command, each taking whatever follows its name."""
    return [_app(name, part) for name, part in _PARTS.items()]


def _app(name: str, part: str) -> cyclopts.App:
    app = cyclopts.App(name=name, help="Not built yet.", help_flags=(), version_flags=())

    @app.default
    def refuse(*words: Annotated[str, Parameter(show=False, allow_leading_hyphen=True)]) -> int:
        raise ConfigError(f"{name}: {part} not built yet")

    return app
