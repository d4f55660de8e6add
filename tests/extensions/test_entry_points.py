from __future__ import annotations

import threading

import pytest

from platoon.config.variables import IGNORE_REQUIREMENTS
from platoon.extensions.catalog import check, components, suggested_requirement
from platoon.extensions.entry_points import installed, load, loaded_points
from platoon.extensions.names import is_reserved

from .conftest import Install

HARNESSES = "platoon.harnesses"


def test_an_entry_point_is_imported_once_when_it_is_named(install: Install) -> None:
    source = "import sys\nsys.acme_count = getattr(sys, 'acme_count', 0) + 1\nvalue = object()\n"
    install("acme-once", {HARNESSES: {"acme-once": "acme_once_module:value"}}, modules={"acme_once_module": source})
    import sys

    assert "acme-once" in installed("harness")
    assert not hasattr(sys, "acme_count")
    first = load("harness", "acme-once", is_reserved)
    assert load("harness", "acme-once", is_reserved) is first
    assert sys.acme_count == 1  # type: ignore[attr-defined]
    assert ("acme_once_module", "acme-once", "acme-once") in loaded_points()


def test_threads_share_one_load(install: Install) -> None:
    source = "import threading\nbarrier = threading.Event()\nvalue = object()\n"
    install("acme-many", {HARNESSES: {"acme-many": "acme_many_module:value"}}, modules={"acme_many_module": source})
    found: list[object] = []
    threads = [
        threading.Thread(target=lambda: found.append(load("harness", "acme-many", is_reserved))) for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 8
    assert len(set(map(id, found))) == 1


def test_a_broken_one_touches_no_other_and_fails_again(install: Install) -> None:
    install(
        "acme-two",
        {HARNESSES: {"acme-broken": "acme_broken_module:value", "acme-fine": "acme_fine_module:value"}},
        modules={"acme_broken_module": "raise RuntimeError('boom')\n", "acme_fine_module": "value = 3\n"},
    )
    for _ in range(2):
        with pytest.raises(ValueError, match="RuntimeError: boom"):
            load("harness", "acme-broken", is_reserved)
    assert load("harness", "acme-fine", is_reserved) == 3


def test_one_that_names_itself_while_it_is_imported_is_refused(install: Install) -> None:
    source = (
        "from platoon.extensions.entry_points import load\nvalue = load('harness', 'acme-self', lambda name: False)\n"
    )
    install("acme-self", {HARNESSES: {"acme-self": "acme_self_module:value"}}, modules={"acme_self_module": source})
    with pytest.raises(ValueError, match="names itself"):
        load("harness", "acme-self", is_reserved)


def test_one_for_another_platoon_is_refused_or_loaded_on_request(
    install: Install, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("acme-old", "acme-older"):
        module = f"{name.replace('-', '_')}_module"
        points = {HARNESSES: {name: f"{module}:value"}}
        install(name, points, requires=["platoon[ors]>=0.2,<0.3; extra == 'full'"], modules={module: "value = 1\n"})
    with pytest.raises(ValueError, match=r"acme-old needs platoon<0.3,>=0.2, and this is"):
        load("harness", "acme-old", is_reserved)
    monkeypatch.setenv(IGNORE_REQUIREMENTS, "1")
    assert load("harness", "acme-older", is_reserved) == 1


def test_a_reserved_name_of_another_distribution_counts_as_absent(install: Install) -> None:
    install("acme-thief", {HARNESSES: {"platoon-react": "acme_thief_module:value"}})
    assert load("harness", "platoon-react", is_reserved) is None


def test_the_catalog_says_what_is_installed_and_what_is_wrong(install: Install) -> None:
    builtins = {"harness": {"platoon-react": "platoon.harness.react:react"}}
    install(
        "acme-bad",
        {
            HARNESSES: {"platoon-mine": "m:a", "Acme": "m:b", "other-loop": "acme_nowhere:c"},
            "platoon.plugins": {"old": "m"},
        },
        requires=["platoon>=0.4"],
    )
    install("acme-none", {"platoon.environments": {"acme-env": "m:e"}}, requires=["platoon<0.1"])
    rows = {(row.kind, row.name): row for row in components(builtins)}
    assert rows["harness", "platoon-react"].builtin
    assert rows["harness", "platoon-mine"].status == "reserved name"
    assert rows["harness", "Acme"].status == "bad name"
    assert rows["harness", "other-loop"].status == "ok"
    assert rows["environment", "acme-env"].status == "incompatible"
    assert rows["environment", "acme-env"].version == "1.2"
    texts = [f"{one.severity}: {one.distribution}: {one.message}" for one in check(builtins, load=True)]
    joined = "\n".join(texts)
    for part in (
        "error: acme-bad: harness name 'platoon-mine' is reserved",
        "error: acme-bad: harness name 'Acme'",
        "error: acme-bad: harness 'other-loop' of acme-bad does not load: ModuleNotFoundError",
        "error: acme-none: acme-none needs platoon<0.1",
        "warning: acme-bad: 'old' is in the group platoon.plugins",
        "warning: acme-bad: its names have several owners",
        "warning: acme-bad: its requirement on platoon has no upper bound; write platoon>=",
    ):
        assert part in joined, joined
    assert texts == sorted(texts, key=lambda text: not text.startswith("error"))
    only = check(builtins, ["acme_none", "nothing-here"])
    assert {(one.severity, one.distribution) for one in only} == {("error", "acme-none"), ("error", "nothing-here")}


def test_the_suggested_requirement_ends_before_the_next_release_that_may_break() -> None:
    assert suggested_requirement("0.4.2") == "platoon>=0.4,<0.5"
    assert suggested_requirement("1.3.0") == "platoon>=1.3,<2"
