"""Made once whatever happens: processes at the same time, a maker that fails, one that is killed."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from platoon.config.locked_step import KEY, locked_step

MAKER = """
import os, sys
from pathlib import Path
from platoon.config.locked_step import locked_step

root, key, die = Path(sys.argv[1]), sys.argv[2], sys.argv[3] == "die"

def make(draft):
    with (root / "made").open("a") as file:
        file.write(key + "\\n")
    for number in range(50):
        (draft / f"part{number}").write_text(str(number))
        if die and number == 20:
            os.kill(os.getpid(), 9)

made = locked_step(root, key, make)
names = sorted(path.name for path in made.path.iterdir())
assert names == sorted(f"part{number}" for number in range(50)), names
print("new" if made.new else "there")
"""


def maker(root: Path, key: str, mode: str = "live") -> subprocess.Popen[str]:
    return subprocess.Popen([sys.executable, "-c", MAKER, str(root), key, mode], stdout=subprocess.PIPE, text=True)


def test_processes_at_once_make_each_key_once(tmp_path: Path) -> None:
    makers = [maker(tmp_path, key) for key in ("a", "b") for _ in range(4)]
    said = [process.communicate(timeout=60)[0].strip() for process in makers]
    assert [process.returncode for process in makers] == [0] * 8
    assert sorted(said) == ["new"] * 2 + ["there"] * 6
    assert sorted((tmp_path / "made").read_text().split()) == ["a", "b"]


def test_a_killed_maker_leaves_nothing_under_the_name(tmp_path: Path) -> None:
    dead = maker(tmp_path, "a", "die")
    dead.wait(60)
    assert dead.returncode == -9
    assert not (tmp_path / "a").exists()
    next_one = maker(tmp_path, "a")
    assert next_one.communicate(timeout=60)[0].strip() == "new"
    assert next_one.returncode == 0


def test_a_maker_that_fails_leaves_nothing_and_can_be_tried_again(tmp_path: Path) -> None:
    def fails(draft: Path) -> None:
        (draft / "half").write_text("x")
        raise LookupError("no network")

    with pytest.raises(LookupError, match="no network"):
        locked_step(tmp_path, "a", fails)
    assert not (tmp_path / "a").exists()
    made = locked_step(tmp_path, "a", lambda draft: (draft / "whole").write_text("y"))
    assert made.new
    assert [path.name for path in made.path.iterdir()] == ["whole"]
    assert not locked_step(tmp_path, "a", fails).new


@settings(max_examples=40, deadline=None)
@given(st.text(max_size=20))
def test_a_key_stays_below_its_root_or_is_refused(key: str) -> None:
    with tempfile.TemporaryDirectory() as directory:
        root = Path(directory)
        if KEY.fullmatch(key):
            assert locked_step(root, key, lambda draft: None).path == root / key
        else:
            with pytest.raises(ValueError, match="key"):
                locked_step(root, key, lambda draft: None)
            assert list(root.iterdir()) == []
