from __future__ import annotations

import sys
from pathlib import Path

import pytest

from platoon.extensions.static import name_problem

SOURCE = """
import os.path
from json import dumps as made
raise_if_run = 1 / 0
class Here: ...
def made_here(): ...
async def later(): ...
first, (second, *rest) = 1, (2, 3)
annotated: int = 3
try:
    class Maybe: ...
except ImportError:
    Maybe = Fallback = None
if True:
    deep = 1
else:
    other = 2
"""


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    (tmp_path / "static_plain.py").write_text(SOURCE)
    (tmp_path / "static_star.py").write_text("from json import *\n")
    (tmp_path / "static_lazy.py").write_text("def __getattr__(name): ...\n")
    (tmp_path / "static_broken.py").write_text("class (:\n")
    return tmp_path


@pytest.mark.parametrize(
    "name",
    ["Here", "made", "made_here", "later", "os", "first", "second", "rest", "annotated", "Maybe", "deep", "other"],
)
def test_names_are_found_without_running_the_module(name: str, project: Path) -> None:
    assert name_problem("static_plain", name) is None
    assert name_problem("static_plain", f"{name}.x") is None
    assert "static_plain" not in sys.modules


@pytest.mark.parametrize(
    ("module", "name", "text"),
    [
        ("static_plain", "Hear", "did you mean Here?"),
        ("static_plain", "zzz", "module 'static_plain' has no 'zzz'"),
        ("static_nowhere", "X", "no module is named 'static_nowhere'"),
        ("static_nowhere.deep", "X", "ModuleNotFoundError"),
        ("json", "nothing", "has no 'nothing'"),
    ],
)
def test_what_is_not_there_is_named(module: str, name: str, text: str, project: Path) -> None:
    assert text in (name_problem(module, name) or "")


@pytest.mark.parametrize("module", ["static_star", "static_lazy", "static_broken", "math", "_socket"])
def test_in_doubt_the_import_will_tell(module: str, project: Path) -> None:
    assert name_problem(module, "anything") is None or module in sys.modules
