"""Import the flows and tasks that ship with platoon, by location.

`flows` and `tasks` are common names: a user's directory may hold a `tasks.py` of its own, which the user's harness
imports. So ours are loaded from their files under private names (`_platoon_flows`, `_platoon_tasks`) and never as
`flows` or `tasks`. Inside our files `from tasks.recording import ...` is rewritten to the private name as the file is
compiled. Neither side can shadow the other, and `sys.path` and the working directory do not matter.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.machinery import ModuleSpec, SourceFileLoader
from importlib.util import spec_from_file_location
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

PRIVATE = {"flows": "_platoon_flows", "tasks": "_platoon_tasks"}


def load_flow(name: str) -> ModuleType:
    """The module `flows.<name>` that ships with this platoon: `train`, `eval` or `prepare`."""
    return load(f"flows.{name}")


def load(dotted: str) -> ModuleType:
    """A module of the shipped `flows` or `tasks`, such as `tasks.endpoint`."""
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder())
    return import_module(private_name(dotted))


def private_name(dotted: str) -> str:
    """`tasks.recording` → `_platoon_tasks.recording`; other names stay."""
    top, dot, rest = dotted.partition(".")
    return PRIVATE.get(top, top) + dot + rest


def root() -> Path:
    """The directory that holds `flows/` and `tasks/`: in the wheel `platoon/_shipped`, else next to the package."""
    package = Path(__file__).resolve().parent.parent
    shipped = package / "_shipped"
    return shipped if shipped.is_dir() else package.parent


class _Finder:
    """Finds the private names, and nothing else."""

    def find_spec(self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None) -> Any:
        top, *rest = name.split(".")
        public = {private: public for public, private in PRIVATE.items()}.get(top)
        if public is None:
            return None
        base = root().joinpath(public, *rest)
        if (base / "__init__.py").is_file():
            return _spec(name, base / "__init__.py", [str(base)])
        if base.with_suffix(".py").is_file():
            return _spec(name, base.with_suffix(".py"), None)
        return None


class _Loader(SourceFileLoader):
    """Compiles a file with its imports of `flows` and `tasks` pointed at the private names. Nothing is cached: the
    rewritten code must not end up in the `__pycache__` that ordinary imports of the same file use."""

    def get_code(self, fullname: str) -> CodeType:
        path = self.get_filename(fullname)
        tree = _Private(path).visit(ast.parse(self.get_data(path), filename=path))
        return compile(tree, path, "exec", dont_inherit=True)


class _Private(ast.NodeTransformer):
    def __init__(self, path: str) -> None:
        self._path = path

    def visit_ImportFrom(self, node: ast.ImportFrom) -> ast.ImportFrom:
        if node.level == 0 and node.module:
            node.module = private_name(node.module)
        return node

    def visit_Import(self, node: ast.Import) -> ast.Import:
        for alias in node.names:
            if alias.name.split(".")[0] in PRIVATE:
                raise ImportError(f"{self._path}:{node.lineno}: write `from {alias.name} import ...`")
        return node


def _spec(name: str, file: Path, search: list[str] | None) -> ModuleSpec | None:
    loader = _Loader(name, str(file))
    return spec_from_file_location(name, file, loader=loader, submodule_search_locations=search)
