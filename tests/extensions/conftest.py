"""A distribution that lies in a directory of its own, as pip would install it."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import pytest

from platoon.extensions.entry_points import installed

Install = Callable[..., None]


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Install]:
    """`install(name, {group: {entry point: value}}, requires=[...], modules={name: source})`."""
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])

    def make(
        name: str,
        groups: Mapping[str, Mapping[str, str]],
        *,
        requires: Sequence[str] = ("platoon>=0.4,<0.5",),
        modules: Mapping[str, str] | None = None,
    ) -> None:
        info = tmp_path / f"{name.replace('-', '_')}-1.2.dist-info"
        info.mkdir()
        lines = ["Metadata-Version: 2.1", f"Name: {name}", "Version: 1.2", "Provides-Extra: full"]
        (info / "METADATA").write_text("\n".join([*lines, *(f"Requires-Dist: {one}" for one in requires)]) + "\n")
        sections = [
            f"[{group}]\n" + "".join(f"{k} = {v}\n" for k, v in points.items()) for group, points in groups.items()
        ]
        (info / "entry_points.txt").write_text("\n".join(sections))
        for module, source in (modules or {}).items():
            (tmp_path / f"{module}.py").write_text(source)
        importlib.invalidate_caches()
        installed.cache_clear()

    yield make
    installed.cache_clear()
