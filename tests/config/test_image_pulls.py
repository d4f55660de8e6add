from __future__ import annotations

import json
from pathlib import Path

import pytest

from platoon.config import ConfigError
from platoon.config.image_pulls import VARIABLE, image_pulls

GOOD = {"reference": "docker://a:1", "path": "/i/a.sif", "sha256": "a" * 64, "manifest_digest": "sha256:" + "b" * 64}


def test_pulls_are_recorded_as_they_were_made(tmp_path: Path) -> None:
    assert image_pulls({}) is None
    path = tmp_path / "pulls.jsonl"
    rows = [GOOD, {**GOOD, "manifest_digest": None, "seconds": 3}]
    path.write_text("\n".join(map(json.dumps, rows)) + "\n\n", encoding="utf-8")
    assert image_pulls({VARIABLE: str(path)}) == [GOOD, {**GOOD, "manifest_digest": None}]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "holds no record"),
        ("{", ":1: is not JSON"),
        ("3", ":1: is no record; got 3"),
        (json.dumps({**GOOD, "sha256": "x"}), ":1: sha256: must be a SHA-256"),
        (json.dumps({**GOOD, "path": 3}), ":1: path: must be text; got 3"),
        (json.dumps({key: GOOD[key] for key in ("reference", "path", "sha256")}), "manifest_digest: must be text"),
        (json.dumps(GOOD) + "\n\n[]", ":3: is no record"),
    ],
)
def test_a_bad_record_is_named_with_its_line(text: str, problem: str, tmp_path: Path) -> None:
    (tmp_path / "pulls.jsonl").write_text(text, encoding="utf-8")
    with pytest.raises(ConfigError, match=problem):
        image_pulls({VARIABLE: str(tmp_path / "pulls.jsonl")})
    with pytest.raises(ConfigError, match="cannot be read"):
        image_pulls({VARIABLE: str(tmp_path / "none.jsonl")})
