"""The pages of the documentation, cut into fenced blocks, code spans and links."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
GENERATED = ROOT / "docs/reference/config.md"
PAGES = tuple(
    sorted(
        {ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md"}
        | set((ROOT / "docs").rglob("*.md"))
        | set((ROOT / "examples").glob("*/README.md"))
    )
)
_FENCE = re.compile(r"^```(?P<language>\S*)\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL)
_SPAN = re.compile(r"`([^`\n]+)`")
_LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
_UV = "uv run --extra local --extra ors "


@dataclass(frozen=True)
class Piece:
    """A block, span or link, and where it stands."""

    page: Path
    line: int
    text: str
    language: str = ""

    def __str__(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}"


@cache
def text_of(page: Path) -> str:
    return page.read_text(encoding="utf-8")


def blocks(language: str | None = None) -> list[Piece]:
    """Fenced blocks of all pages, of one language or of all."""
    found = []
    for page in PAGES:
        for match in _FENCE.finditer(text_of(page)):
            line = text_of(page).count("\n", 0, match.start()) + 2
            found.append(Piece(page, line, match["text"], match["language"]))
    return [block for block in found if language in (None, block.language)]


def spans(*, generated: bool = True) -> Iterator[Piece]:
    """Code spans outside of fences."""
    yield from _outside(_SPAN, generated)


def links() -> Iterator[Piece]:
    """Targets of links outside of fences."""
    yield from _outside(_LINK, True)


def _outside(pattern: re.Pattern[str], generated: bool) -> Iterator[Piece]:
    for page in PAGES:
        if page == GENERATED and not generated:
            continue
        prose = _FENCE.sub(lambda match: "\n" * match[0].count("\n"), text_of(page))
        for match in pattern.finditer(prose):
            yield Piece(page, prose.count("\n", 0, match.start()) + 1, match[1])


def commands() -> list[Piece]:
    """Lines of shell blocks without comments and without the prefix that runs platoon by uv."""
    found = []
    for block in blocks("sh"):
        for offset, line in enumerate(block.text.splitlines()):
            words = shlex.split(line, comments=True)
            if words:
                found.append(Piece(block.page, block.line + offset, shlex.join(words).removeprefix(_UV)))
    return found


def named_files(block: Piece) -> str | None:
    """The file that a block's first line names (`# letters.py`), if any."""
    match = re.match(r"# (\w+\.(?:py|yaml))\n", block.text)
    return match[1] if match else None
