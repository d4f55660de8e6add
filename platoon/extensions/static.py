"""Whether a module and a name in it exist, found in its source without running it.

For classes whose import is slow or has effects. In doubt the answer is yes: the import will tell.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterable, Iterator
from importlib.util import find_spec
from pathlib import Path

from platoon.config.problems import nearest
from platoon.extensions.boundary import Boundary


def name_problem(module: str, name: str) -> str | None:
    """Why `module:name` cannot be imported, or None. Packages above the module are imported to find it."""
    first = name.partition(".")[0]
    if module in sys.modules:
        loaded = sys.modules[module]
        return None if hasattr(loaded, first) else _missing(module, name, vars(loaded))
    spec = None
    with Boundary("extension", quiet=True) as caught:
        spec = find_spec(module)
    if caught.error is not None:
        return caught.text
    if spec is None:
        return f"no module is named {module!r}"
    if spec.origin is None or not spec.origin.endswith(".py"):
        return None
    names = _names(Path(spec.origin))
    return None if names is None or first in names else _missing(module, name, names)


def _missing(module: str, name: str, names: Iterable[str]) -> str:
    close = nearest(name.partition(".")[0], names)
    return f"module {module!r} has no {name!r}" + (f"; did you mean {close}?" if close else "")


def _parsed(source: bytes) -> ast.Module:
    """Python 3.11 counts the depth of all threads' parsers in one place, and raises SystemError when two meet."""
    for _ in range(20):
        try:
            return ast.parse(source)
        except SystemError:
            continue
    return ast.parse(source)


def _names(file: Path) -> set[str] | None:
    """The names a module binds at its top level; None when the source does not tell."""
    try:
        tree = _parsed(file.read_bytes())
    except (OSError, SyntaxError, ValueError):
        return None
    names: set[str] = set()
    for node in _top_level(tree.body):
        if isinstance(node, ast.ImportFrom) and any(alias.name == "*" for alias in node.names):
            return None
        if isinstance(node, ast.Import | ast.ImportFrom):
            names |= {alias.asname or alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            names.add(node.name)
        else:
            names |= {one.id for one in ast.walk(node) if isinstance(one, ast.Name) and isinstance(one.ctx, ast.Store)}
    dynamic = "__getattr__" in names or any(isinstance(n, ast.Name) and n.id == "globals" for n in ast.walk(tree))
    return None if dynamic else names


def _top_level(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    for node in body:
        yield node
        for part in ("body", "orelse", "finalbody", "handlers"):
            inner = getattr(node, part, None)
            if isinstance(node, ast.If | ast.Try | ast.With) and isinstance(inner, list):
                yield from _top_level([one for item in inner for one in getattr(item, "body", [item])])
