from __future__ import annotations

import pickle
from typing import Any

import pytest

import platoon
from platoon.config import ConfigError
from platoon.harness import list_harnesses
from platoon.harness.contract import AgentContext, AgentResult
from platoon.harness.registry import FunctionHarness, get_harness, harness


@harness("acme-loop", version="2.4.6", executes_model_code=True)
async def loop(ctx: AgentContext) -> AgentResult:
    return AgentResult()


@harness("acme-loop", version="3.0")
async def newer(ctx: AgentContext) -> AgentResult:
    return AgentResult()


async def plain(ctx: AgentContext) -> AgentResult:
    return AgentResult()


def not_async(ctx: AgentContext) -> AgentResult:
    return AgentResult()


HERE = "tests.harness.test_registry"


@pytest.mark.parametrize(
    ("reference", "ref"),
    [
        ("acme-loop@2.4.6", "acme-loop@2.4.6"),
        ("acme-loop@2", "acme-loop@2.4.6"),
        ("acme-loop@3", "acme-loop@3.0"),
        ("platoon-react", "platoon-react@1"),
        ("platoon-noop@1", "platoon-noop@1"),
        (f"{HERE}:loop", "acme-loop@2.4.6"),
        (f"python://{HERE}:loop", "acme-loop@2.4.6"),
        (f"{HERE}:plain", f"{HERE}:plain@1"),
    ],
)
def test_references(reference: str, ref: str) -> None:
    assert get_harness(reference).ref == ref


@pytest.mark.parametrize(
    ("reference", "text"),
    [
        ("acme-loop", "several versions"),
        ("acme-loop@2.4.7", "no version"),
        ("acme-loop@2.4.", "no version"),
        ("platoon-reakt", "did you mean platoon-react"),
        ("specs/acme.toml", "not built yet"),
        ("mini-swe-agent", "not built yet"),
        ("platoon-codeact@1", "not built yet"),
        (f"{HERE}:not_async", "async def"),
        (f"{HERE}:HERE", "not an async function"),
        (f"{HERE}:nothing", "no attribute"),
        ("no.such.module:fn", "cannot be imported"),
    ],
)
def test_what_a_reference_does_not_name(reference: str, text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        get_harness(reference)


@pytest.mark.parametrize(
    ("name", "version", "text"),
    [
        ("platoon-mine", "1", "reserved"),
        ("platoon", "1", "reserved"),
        ("openhands", "1", "reserved"),
        ("Acme", "1", "lower-case"),
        ("acme.toml", "1", "toml"),
        ("acme", "1 2", "version"),
    ],
)
def test_names_and_versions_follow_the_rules(name: str, version: str, text: str) -> None:
    with pytest.raises(ValueError, match=text):
        harness(name, version=version)(plain)


def test_a_name_belongs_to_one_function() -> None:
    assert harness("acme-loop", version="3.0")(newer) is newer
    with pytest.raises(ValueError, match="already registered"):
        harness("acme-loop", version="3.0")(plain)


def test_the_package_itself_is_the_decorator() -> None:
    pt: Any = platoon
    assert pt.harness("acme-loop", version="3.0")(newer) is newer
    assert pt.get_harness("acme-loop@3") == pt.harness.get_harness("acme-loop@3")


def test_the_function_comes_back_unchanged_and_its_harness_survives_a_pickle() -> None:
    assert loop.__name__ == "loop"
    found = get_harness(f"{HERE}:loop")
    assert found.executes_model_code
    assert pickle.loads(pickle.dumps(found)) == found


def test_the_list_names_built_in_and_registered_ones() -> None:
    refs = {row.ref: row for row in list_harnesses()}
    assert {"platoon-react@1", "platoon-noop@1", "acme-loop@3.0"} <= refs.keys()
    assert refs["platoon-react@1"].distribution == "platoon"
    assert refs["acme-loop@3.0"].source == f"{HERE}:newer"


def test_a_made_harness_is_checked() -> None:
    made: Any = "thread"
    with pytest.raises(ValueError, match="runtime"):
        FunctionHarness("acme", "1", made, False, plain)
