"""How commands print tables and JSON."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Annotated, Any

from cyclopts import Parameter

JsonOutput = Annotated[bool, Parameter(name=("--json-output", "--json"))]


def table(heads: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
    """Print rows under their heads, each column as wide as its longest cell."""
    lines = [tuple(heads), *(tuple(map(str, row)) for row in rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(heads))]
    for line in lines:
        print("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip())


def as_json(value: Any) -> None:
    """Print one JSON value for a script."""
    print(json.dumps(value, indent=2, ensure_ascii=False))
