"""What the documentation names exists: commands, files, keys, names, links."""

from __future__ import annotations

import ast
import importlib
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args, get_origin

import cyclopts
import pytest
import yaml

from platoon.cli.app import app
from platoon.config import EvalRun, TrainRun, load
from platoon.config.base import Section
from platoon.config.schema import section_of
from platoon.config.unbuilt import TABLES
from platoon.envs.named import NamedEnvironments
from platoon.extensions.entry_points import GROUPS
from tests.docs.pages import ROOT, Piece, blocks, commands, links, named_files, spans, text_of

LANGUAGES = {"sh", "python", "yaml", "text"}
MODELS = (TrainRun, EvalRun)
TOP_KEYS = {key for model in MODELS for key in model.model_fields}
_KEY = re.compile(r"[a-z_]+(\.[a-z_0-9*]+)*")


def test_every_fence_names_its_language() -> None:
    assert [f"{block}: {block.language!r}" for block in blocks() if block.language not in LANGUAGES] == []


# -- commands


def parsed(words: list[str]) -> str | None:
    """Why the command line refuses these words; None when it takes them."""
    try:
        app.parse_args(words, exit_on_error=False, print_error=False)
    except cyclopts.CycloptsError as error:
        return str(error)
    return None


def test_a_wrong_command_is_found() -> None:
    assert parsed(["tasks", "shout", "runs"])
    assert parsed(["tasks", "show", "runs", "--sort", "beauty"])
    assert parsed(["tasks", "show", "runs"]) is None


def test_fenced_commands_parse() -> None:
    lines = [piece for piece in commands() if piece.text.startswith("platoon ")]
    assert len(lines) > 15
    wrong = [f"{piece}: {piece.text}: {problem}" for piece in lines if (problem := parsed(shlex.split(piece.text)[1:]))]
    assert wrong == []


def test_commands_in_the_text_exist() -> None:
    names = {name for name in app if not name.startswith("-")}
    wrong = []
    for piece in spans():
        words = piece.text.split()
        if len(words) < 2 or words[0] != "platoon":
            continue
        options = [word for word in words if word.startswith("--")]
        if words[1].startswith("-"):
            continue
        if words[1] not in names:
            wrong.append(f"{piece}: {piece.text}")
        elif not options and not re.search("[|<…]", piece.text) and words[1] in {"config", "tasks", "server"}:
            sub = words[2] if len(words) > 2 else None
            if sub is not None and sub not in set(app[words[1]]):
                wrong.append(f"{piece}: {piece.text}")
    assert wrong == []


def test_other_commands_exist() -> None:
    targets = set(re.findall(r"^([a-z-]+):", text_of(ROOT / "Makefile"), re.MULTILINE))
    known = {"platoon", "make", "uv", "export", "sha256sum", "python", "git", "pre-commit"}
    wrong = []
    for piece in commands():
        first, *rest = shlex.split(piece.text)
        if first not in known or (first == "make" and not set(rest) <= targets):
            wrong.append(f"{piece}: {piece.text}")
    assert wrong == []


def test_files_in_commands_and_text_exist() -> None:
    named = re.compile(r"(?:examples|benchmarks|docs|flows|tasks|platoon|scripts)/[\w./-]+\.(?:py|yaml|md)")
    wrong = [
        f"{piece}: {path}"
        for piece in [*commands(), *spans()]
        for path in named.findall(piece.text)
        if not (ROOT / path).is_file()
    ]
    assert wrong == []


# -- config keys


def has_key(section: type[Section], parts: list[str]) -> bool:
    """Whether a dotted key exists below a section; mappings are free-form, `*` and numbers stand for list indices."""
    field = section.model_fields.get(parts[0])
    if field is None:
        return False
    rest = parts[1:]
    if rest and (rest[0] == "*" or rest[0].isdigit()):
        rest = rest[1:]
    return not rest or any(
        get_origin(part) is dict or ((nested := section_of(part)) is not None and has_key(nested, rest))
        for part in inside(field.annotation)
    )


def inside(annotation: Any) -> Iterator[Any]:
    """An annotation and everything it is made of."""
    yield annotation
    for part in get_args(annotation):
        yield from inside(part)


def key_problem(text: str) -> str | None:
    """Why a code span that looks like a config key is none; None for keys and for all other spans."""
    key = text.split("=")[0].split(":")[0].rstrip("+").strip().replace("[]", ".*")
    if not _KEY.fullmatch(key) or "." not in key or key.split(".")[0] not in TOP_KEYS:
        return None
    if key.endswith((".py", ".yaml", ".md", ".jsonl", ".json")):
        return None
    return None if any(has_key(model, key.split(".")) for model in MODELS) else f"no config key {key}"


def test_a_wrong_key_is_found() -> None:
    assert key_problem("train.batchsize=3")
    assert key_problem("environments.*.harnes")
    assert key_problem("train.workflow_config.rollout_config.max_step")
    assert key_problem("environments.0.seed=3") is None
    assert key_problem("train.loss_fn_config.clip_low_threshold") is None


def test_config_keys_exist() -> None:
    assert [f"{piece}: {problem}" for piece in spans() if (problem := key_problem(piece.text))] == []


def test_overrides_in_commands_are_keys() -> None:
    words = [(piece, word) for piece in commands() for word in shlex.split(piece.text) if "=" in word]
    assert [f"{piece}: {problem}" for piece, word in words if (problem := key_problem(word))] == []


@pytest.mark.parametrize("block", blocks("yaml"), ids=str)
def test_yaml_loads(block: Piece, tmp_path: Path) -> None:
    data = yaml.safe_load(block.text)
    if not {"train", "inference"} & set(data):
        data["train"] = {"model_name": "platoon-tiny", "renderer_name": "chat_template"}
    file = tmp_path / "config.yaml"
    file.write_text(yaml.safe_dump(data))
    assert load(file, resolver=NamedEnvironments()).config


def test_the_status_table_names_keys_that_are_refused() -> None:
    """When a feature is built, its row leaves the README."""
    table = text_of(ROOT / "README.md").split("## Status")[1].split("## More")[0]
    keys = set(re.findall(r"^\|[^|]+\|(.+)\|$", table, re.MULTILINE)[2:])
    named = {key for cell in keys for key in re.findall(r"`([^`]+)`", cell)}
    assert len(named) > 0
    refused = {row.key for rows in TABLES.values() for row in rows}
    assert named - refused == set(), "built by now: delete the rows"


# -- python


def imported(block: Piece) -> Iterator[tuple[str, str | None]]:
    for node in ast.walk(ast.parse(block.text)):
        if isinstance(node, ast.Import):
            yield from ((alias.name, None) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield from ((node.module, alias.name) for alias in node.names)


@pytest.mark.parametrize("block", blocks("python"), ids=str)
def test_python_compiles_and_its_names_exist(block: Piece) -> None:
    compile(block.text, str(block), "exec")
    for module, name in imported(block):
        if module.partition(".")[0] in {"platoon", "flows"}:
            found = importlib.import_module(module)
            assert name is None or hasattr(found, name), f"{module}.{name}"
    for name in re.findall(r"\bpt\.([A-Za-z]\w*)", block.text):
        assert hasattr(importlib.import_module("platoon"), name), f"pt.{name}"


def test_the_readme_brings_a_whole_project() -> None:
    assert {named_files(block) for block in blocks() if block.page.name == "README.md"} >= {
        "letters.py",
        "one_call.py",
        "letters.yaml",
    }


def test_entry_point_groups_and_names_in_the_text_exist() -> None:
    groups = {piece.text for piece in spans() if re.fullmatch(r"platoon\.[a-z_]+s", piece.text)}
    named = {text for text in groups if text not in {"platoon.hooks", "platoon.models"}}
    assert named == set(GROUPS.values())
    for piece in spans():
        if match := re.fullmatch(r"(platoon(?:\.[a-z_]+)+)\.(\w+)", piece.text):
            if piece.text not in groups:
                assert hasattr(importlib.import_module(match[1]), match[2]), f"{piece}: {piece.text}"
        elif match := re.fullmatch(r"pt\.(\w+)", piece.text):
            assert hasattr(importlib.import_module("platoon"), match[1]), f"{piece}: {piece.text}"


# -- links


def anchors(page: Path) -> set[str]:
    heads = re.findall(r"^#+ (.+)$", text_of(page), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", head.lower()).strip().replace(" ", "-") for head in heads}


def test_relative_links_resolve() -> None:
    wrong = []
    for piece in links():
        if "://" in piece.text:
            continue
        path, _, anchor = piece.text.partition("#")
        target = (piece.page.parent / path).resolve() if path else piece.page
        if not target.exists() or (anchor and anchor not in anchors(target)):
            wrong.append(f"{piece}: {piece.text}")
    assert wrong == []


def test_every_page_is_reached_from_the_index() -> None:
    index = ROOT / "docs/index.md"
    linked = {(piece.page.parent / piece.text).resolve() for piece in links() if piece.page == index}
    assert set((ROOT / "docs").rglob("*.md")) - linked == {index}
