"""The shape of the code base: import direction, sizes, and what must stay out of where."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
LAYERS = [
    {"config"},
    {"extensions"},
    {"render", "sandbox"},
    {"envs"},
    {"gateway"},
    {"harness"},
    {"rollout", "credit", "stats"},
    {"draw"},
    {"train", "eval", "view"},
]
LEAVES = {
    "platoon.rollout.outcome",
    "platoon.rollout.trajectory",
    "platoon.harness.contract",
    "platoon.stats.schema",
}
RANK = {room: rank for rank, rooms in enumerate(LAYERS) for room in rooms}
# the modules whose whole point is one heavy library; each is imported only where that library is needed
SERVER_PROCESS = ROOT / "platoon/cli/server_process.py"
SERVER_DATABASE = ROOT / "platoon/cli/server_database.py"
HEAVY = {
    SERVER_PROCESS,
    SERVER_DATABASE,
    ROOT / "platoon/render/cookbook.py",
    ROOT / "platoon/envs/number_search/env.py",
}
SOURCES = sorted(p for top in ("platoon", "flows", "tasks") for p in (ROOT / top).rglob("*.py"))


def imports(path: Path, *, top_level: bool = False) -> Iterator[tuple[int, str]]:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    nodes = tree.body if top_level else ast.walk(tree)
    for node in nodes:
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            yield node.lineno, node.module


def room_of(path: Path) -> str | None:
    parts = path.relative_to(ROOT).parts
    return parts[1] if parts[0] == "platoon" and len(parts) > 2 else None


def dotted(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts)


def test_imports_point_one_way() -> None:
    wrong = []
    for path in SOURCES:
        room = room_of(path)
        if room not in RANK or dotted(path) in LEAVES:
            continue
        for line, module in imports(path):
            if not module.startswith("platoon.") or module in LEAVES:
                continue
            other = module.split(".")[1]
            if other in RANK and other != room and RANK[other] >= RANK[room]:
                wrong.append(f"{path.relative_to(ROOT)}:{line} imports {module}")
            if other in {"cli", "testing", "service"}:
                wrong.append(f"{path.relative_to(ROOT)}:{line} imports {module}")
    assert not wrong, "\n".join(wrong)


def test_service_imports_only_config() -> None:
    for path in (ROOT / "platoon/service").rglob("*.py"):
        for line, module in imports(path):
            if module.startswith("platoon."):
                assert module.split(".")[1] in {"config", "service"}, f"{path}:{line} imports {module}"


@pytest.mark.parametrize("package", ["platoon", "flows", "tasks"])
def test_library_never_imports_prefect_and_upper_layers(package: str) -> None:
    forbidden = {"platoon": {"prefect", "flows", "tasks"}, "tasks": {"flows"}, "flows": set()}[package]
    for path in (ROOT / package).rglob("*.py"):
        if path in {SERVER_PROCESS, SERVER_DATABASE}:
            continue
        for line, module in imports(path):
            assert module.partition(".")[0] not in forbidden, f"{path}:{line} imports {module}"


def test_heavy_modules_are_not_imported_at_module_level_of_light_rooms() -> None:
    heavy = {"torch", "tinker", "prefect", "openreward", "wandb", "transformers", "datasets", "tinker_cookbook"}
    for path in SOURCES:
        if path.parts[len(ROOT.parts)] != "platoon" or path in HEAVY:
            continue
        for line, module in imports(path, top_level=True):
            assert module.partition(".")[0] not in heavy, f"{path}:{line} imports {module} at module level"


def test_config_and_cli_start_light() -> None:
    for path in {*(ROOT / "platoon/config").rglob("*.py"), *(ROOT / "platoon/cli").rglob("*.py")} - HEAVY:
        for line, module in imports(path, top_level=True):
            assert module.partition(".")[0] not in {"polars", "pyarrow", "fastapi", "uvicorn"}, (
                f"{path}:{line} {module}"
            )


def test_sizes() -> None:
    long = []
    for path in SOURCES:
        text = path.read_text(encoding="utf-8")
        if text.count("\n") > 600:
            long.append(f"{path.relative_to(ROOT)}: {text.count(chr(10))} lines (600 at most)")
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                size = (node.end_lineno or node.lineno) - node.lineno + 1
                if size > 80:
                    long.append(f"{path.relative_to(ROOT)}:{node.lineno} {node.name}: {size} lines (80 at most)")
    assert not long, "\n".join(long)


def test_broad_excepts_are_few_and_named() -> None:
    broad = []
    for path in SOURCES:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ExceptHandler):
                names = {getattr(n, "id", "") for n in ast.walk(node.type)} if node.type is not None else {""}
                passes_on = isinstance(node.body[-1], ast.Raise) and node.body[-1].exc is None
                if (node.type is None or names & {"Exception", "BaseException"}) and not passes_on:
                    broad.append(f"{path.relative_to(ROOT)}:{node.lineno}")
    assert len(broad) <= 5, "\n".join(broad)
