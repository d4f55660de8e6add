"""Rows of a growing file: each once, whole lines only, in order."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from platoon.stats.jsonl import JsonlTail


@given(st.lists(st.text(max_size=8), max_size=8), st.data())
def test_each_row_comes_once_however_the_file_grows(texts: list[str], data: st.DataObject) -> None:
    content = "".join(json.dumps({"text": text}, ensure_ascii=False) + "\n" for text in texts).encode()
    cuts = sorted(data.draw(st.lists(st.integers(0, len(content)), max_size=6)))
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "rows.jsonl"
        tail = JsonlTail(path)
        found = tail.read()
        for start, end in zip([0, *cuts], [*cuts, len(content)], strict=True):
            with path.open("ab") as file:
                file.write(content[start:end])
            found += tail.read()
    assert [row["text"] for row in found] == texts


def test_what_was_there_can_be_left_out_and_bad_lines_are(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text('{"n": 1}\n')
    tail = JsonlTail(path, skip=True)
    with path.open("a") as file:
        file.write('nonsense\n[1]\n{"n": 2}\n{"n": 3')
    assert tail.read() == [{"n": 2}]
    with path.open("a") as file:
        file.write("}\n")
    assert tail.read() == [{"n": 3}]
    assert tail.read() == []
