from __future__ import annotations

from typing import Any

import pytest

from platoon import registry
from platoon.hooks import HOOKS, hooks, register
from platoon.registry import register_component, register_workflow, resolve_component


def loader() -> list[str]:
    return []


def test_a_registered_component_is_found_by_its_name() -> None:
    assert register_component("dataset_loader", "acme-rows", loader, note="x") is loader
    assert resolve_component("dataset_loader", "acme-rows") is loader
    assert register_component("dataset_loader", "acme-rows", loader) is loader

    @registry.register_rollout("acme-play")
    def play() -> None: ...

    assert resolve_component("rollout", "acme-play") is play

    class Flow: ...

    register_workflow("acme-flow", Flow)
    assert resolve_component("workflow", "acme-flow") is Flow


def test_import_strings_and_objects_name_themselves() -> None:
    assert resolve_component("rollout", f"{__name__}:loader") is loader
    assert resolve_component("rollout", f"{__name__}.loader") is loader
    assert resolve_component("rollout", loader) is loader


@pytest.mark.parametrize(
    ("kind", "name", "value"),
    [
        ("nothing", "a", loader),
        ("rollout", "a:b", loader),
        ("rollout", " ", loader),
        ("dataset_loader", "acme-two", len),
    ],
)
def test_what_cannot_be_registered(kind: str, name: str, value: Any) -> None:
    register_component("dataset_loader", "acme-two", loader)
    with pytest.raises(ValueError, match=r"kind|name|already"):
        register_component(kind, name, value)
    assert register_component("dataset_loader", "acme-two", loader, exist_ok=True) is loader


@pytest.mark.parametrize(
    ("reference", "text"),
    [
        ("acme-rowz", "did you mean acme-rows"),
        ("no.such.module_here", "cannot be imported"),
        (f"{__name__}:nothing", "no attribute"),
    ],
)
def test_what_a_reference_does_not_name(reference: str, text: str) -> None:
    register_component("dataset_loader", "acme-rows", loader)
    with pytest.raises(ValueError, match=text):
        resolve_component("dataset_loader", reference)


def test_hooks_keep_a_function_once_and_in_order() -> None:
    def first(steps: Any) -> set[str]:
        return set()

    def second(steps: Any) -> set[str]:
        return set()

    name = "rollout_worker.diagnostics"
    before = hooks(name)
    for fn in (first, second, first):
        assert register(name, fn) is fn
    assert hooks(name) == (*before, first, second)
    assert set(HOOKS) >= {"trajectory.error_completion_ids", "trajectory.message_completion_ids"}
    with pytest.raises(ValueError, match="no hook is named"):
        register("trajectory.nothing", first)
    not_callable: Any = 3
    with pytest.raises(ValueError, match="cannot be called"):
        register(name, not_callable)
