from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

import pytest
from pydantic import BaseModel

from platoon.config import ConfigError
from platoon.extensions.options import (
    OptionSchema,
    option_problems,
    option_record,
    option_rows,
    parse_options,
    signature_problems,
)


@dataclass(frozen=True)
class Nested:
    a: int = 1


@dataclass(frozen=True)
class Explore:
    explore: float = 0.2
    band: tuple[float, float] | None = None
    candidates: int = 4096
    mode: Literal["fast", "slow"] = "fast"
    nested: Nested = field(default_factory=Nested)

    def __post_init__(self) -> None:
        if not 0 <= self.explore <= 1:
            raise ValueError("explore: must be from 0 to 1")
        if self.band is not None and self.band[0] >= self.band[1]:
            raise ValueError("the band is empty")


class Model(BaseModel):
    size: int
    name: str = "x"


def parser(options: dict[str, Any]) -> dict[str, Any]:
    if "path" not in options:
        raise ValueError("needs a path")
    if options["path"] == "crash":
        raise RuntimeError("boom")
    return {"path": str(options["path"]), "depth": 2}


@pytest.mark.parametrize(
    ("schema", "options", "expected"),
    [
        (Explore, {}, []),
        (Explore, {"explore": 1, "band": [0, 1], "nested": {"a": 3}}, []),
        (Explore, {"explore": 3}, ["explore: must be from 0 to 1"]),
        (Explore, {"band": [1, 0]}, ["the band is empty"]),
        (Explore, {"explre": 1}, ["explre: unknown key; did you mean explore?"]),
        (Explore, {"candidates": 1.5}, ["candidates: input should be a valid integer; got 1.5"]),
        (Explore, {"candidates": True}, ["candidates: input should be a valid integer; got true"]),
        (Explore, {"explore": "much"}, ['explore: input should be a valid number; got "much"']),
        (Explore, {"nested": {"a": "x"}}, ['nested.a: input should be a valid integer; got "x"']),
        (Model, {}, ["size: missing; it has no default"]),
        (Model, {"size": 1, "sizes": 2}, ["sizes: unknown key; did you mean size?"]),
        (None, {}, []),
        (None, {"a": 1}, ["a: the rule all takes no options; remove the key"]),
        (parser, {"path": "x"}, []),
        (parser, {}, ["needs a path"]),
        (parser, {"path": "crash"}, ["RuntimeError: boom"]),
    ],
)
def test_options_fit_their_schema(schema: OptionSchema, options: dict[str, Any], expected: list[str]) -> None:
    found = [str(problem) for problem in option_problems(schema, options, "the rule all")]
    assert found == expected
    if expected:
        with pytest.raises(ConfigError):
            parse_options(schema, options, "the rule all")


def test_every_problem_is_reported_at_once() -> None:
    found = option_problems(Explore, {"explore": "x", "candidates": "y", "bandd": 1}, "x")
    assert {problem.path for problem in found} == {("explore",), ("candidates",), ("bandd",)}


def test_parsed_and_recorded() -> None:
    parsed = parse_options(Explore, {"band": [0, 1]}, "x")
    assert parsed == Explore(band=(0.0, 1.0))
    assert option_record(Explore, {"band": [0, 1]}, "x") == {
        "explore": 0.2,
        "band": [0.0, 1.0],
        "candidates": 4096,
        "mode": "fast",
        "nested": {"a": 1},
    }
    assert option_record(Model, {"size": 2}, "x") == {"size": 2, "name": "x"}
    assert option_record(parser, {"path": "p"}, "x") == {"path": "p", "depth": 2}
    assert option_record(None, {}, "x") == {}


def test_rows_for_people() -> None:
    assert [(row.name, row.default) for row in option_rows(Explore)][:3] == [
        ("explore", 0.2),
        ("band", None),
        ("candidates", 4096),
    ]
    assert [row.name for row in option_rows(Model)] == ["size", "name"]
    assert option_rows(None) == option_rows(parser) == []


def factory(path: str, *, depth: int = 1) -> None: ...


def anything(**kwargs: Any) -> None: ...


@pytest.mark.parametrize(
    ("function", "given", "expected"),
    [
        (factory, {"path": "x"}, []),
        (factory, {}, ["path: required, and missing"]),
        (factory, {"path": "x", "dept": 2}, ["dept: unknown key; did you mean depth?"]),
        (anything, {"whatever": 1}, []),
    ],
)
def test_arguments_fit_a_signature(function: Any, given: dict[str, Any], expected: list[str]) -> None:
    assert [str(problem) for problem in signature_problems(function, given)] == expected


def test_what_the_reference_fills_is_refused() -> None:
    found = signature_problems(factory, {"path": "x"}, by_reference={"path": "the reference names it"})
    assert [str(problem) for problem in found] == ["path: the reference names it"]
    assert signature_problems(factory, {}, by_reference={"path": "the reference names it"}) == []
