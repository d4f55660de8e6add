"""Whole files, JSON lines and the event log under interruption."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from platoon.stats.events import EventLog
from platoon.stats.files import sha256, write_atomic
from platoon.stats.jsonl import append_row, read_jsonl

ODD = "a\u2028b\u2029c\u0085d\x0be\x0cf\x1cg\r\n"


def test_a_failed_write_keeps_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "new" / "file"
    write_atomic(path, b"old")

    def fails(partial: Path) -> None:
        partial.write_bytes(b"half")
        raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        write_atomic(path, fails)
    assert path.read_bytes() == b"old"
    assert list(path.parent.iterdir()) == [path]
    assert sha256(path) == hashlib.sha256(b"old").hexdigest()


@pytest.mark.parametrize("raw", [False, True])
def test_odd_line_ends_inside_a_text_are_no_line_ends(tmp_path: Path, raw: bool) -> None:
    path = tmp_path / "rows.jsonl"
    if raw:
        text = ODD.replace("\x0b", "").replace("\x0c", "").replace("\x1c", "").replace("\r\n", "")
        path.write_text(f'{{"text": "{text}"}}\n', encoding="utf-8", newline="")
        assert read_jsonl(path).rows == [{"text": text}]
    else:
        append_row(path, {"text": ODD})
        assert read_jsonl(path).rows == [{"text": ODD}]
    assert read_jsonl(path).problems == ()


def test_a_torn_last_line_is_reported_and_the_next_row_starts_afresh(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_bytes(b'{"a": 1}\n[2]\n{"a": ')
    read = read_jsonl(path)
    assert read.rows == [{"a": 1}]
    assert "line 2 holds list" in read.problems[0]
    assert "line 3" in read.problems[1]
    assert "cut short" in read.problems[1]
    append_row(path, {"a": 3})
    assert read_jsonl(path).rows == [{"a": 1}, {"a": 3}]
    assert read_jsonl(tmp_path / "missing").rows == []
    assert read_jsonl(path / "below-a-file").rows == []
    with pytest.raises(ValueError):
        append_row(path, {"a": float("nan")})


def test_events_are_written_at_flush_on_a_fresh_line(tmp_path: Path) -> None:
    path = tmp_path / "tasks" / "events.jsonl"
    path.parent.mkdir()
    path.write_bytes(b'{"event":"start"}\n{"eve')
    events = EventLog(path)
    events.append({"event": "draw", "seq": 1})
    assert len(read_jsonl(path).rows) == 1
    events.flush()
    events.append({"event": "fate", "text": ODD})
    events.close()
    events.close()
    assert [row["event"] for row in read_jsonl(path).rows] == ["start", "draw", "fate"]
    assert b'{"event":"draw","seq":1}\n' in path.read_bytes()


def test_the_first_failure_stops_the_log(tmp_path: Path) -> None:
    (tmp_path / "blocked").write_bytes(b"")
    events = EventLog(tmp_path / "blocked" / "events.jsonl")
    events.append({"event": "draw"})
    events.flush()
    assert events.stopped
    events.append({"event": "draw"})
    events.close()
