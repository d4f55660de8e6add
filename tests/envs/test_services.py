from __future__ import annotations

from typing import Any

import pytest

from platoon.config import ConfigError
from platoon.envs.services import build_service, service_problems, shared_service
from tests.envs.test_listing import Shelf


def make_shelf(splits: dict[str, list[str]], *, columns: dict[str, str] | None = None) -> Shelf:
    return Shelf(splits, columns)


def make_nothing() -> object:
    return object()


def make_broken() -> Shelf:
    raise ValueError("the shelf is empty")


NUMBERS = "python://platoon.envs.number_search.env:NumberSearchEnvironment"
HERE = "tests.envs.test_services"


@pytest.mark.parametrize(
    ("reference", "kwargs", "text"),
    [
        ("harbor", {}, "not built yet"),
        ("table", {}, "not built yet"),
        ("ors+http://localhost:8000/Env", {}, "not built yet"),
        ("ors+https://host/Env", {}, "not built yet"),
        ("number-search", {}, "unknown service"),
        ("python://module", {}, "python://module:Class"),
        (NUMBERS, {"environment": "x"}, "already names it"),
        (NUMBERS, {"max_tool_cals": 1}, "did you mean max_tool_calls"),
        ("python://no_such_module:Env", {}, "no module is named 'no_such_module'"),
        (NUMBERS + "s", {}, "did you mean NumberSearchEnvironment"),
        ("no.such.module:attr", {}, "cannot be imported"),
        (f"{HERE}:make_shelf", {"splits": {}, "columms": {}}, "did you mean columns"),
        (f"{HERE}:make_shelf", {}, "splits: required"),
        (f"{HERE}:HERE", {}, "cannot be called"),
    ],
)
def test_problems_are_found_without_building(reference: str, kwargs: dict[str, Any], text: str) -> None:
    problems = service_problems(reference, kwargs)
    assert len(problems) == 1
    assert text in problems[0]
    with pytest.raises(ConfigError, match=text):
        build_service(reference, kwargs)


def test_a_factory_is_called_with_its_kwargs() -> None:
    service = build_service(f"{HERE}:make_shelf", {"splits": {"train": ["a"]}})
    assert isinstance(service, Shelf)
    assert service.splits == {"train": ["a"]}


@pytest.mark.parametrize(("factory", "text"), [("make_nothing", "lacks name"), ("make_broken", "shelf is empty")])
def test_what_is_no_service_is_a_config_error(factory: str, text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        build_service(f"{HERE}:{factory}", {})


def test_one_service_serves_a_process_for_the_same_options() -> None:
    kwargs = {"splits": {"train": ["a"]}}
    first = shared_service(f"{HERE}:make_shelf", kwargs)
    assert shared_service(f"{HERE}:make_shelf", dict(kwargs)) is first
    assert shared_service(f"{HERE}:make_shelf", {"splits": {}}) is not first
