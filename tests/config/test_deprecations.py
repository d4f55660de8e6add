from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

import pytest
from pydantic import Field

from platoon.config import load_partial
from platoon.config.base import DeprecatedKey, Section
from platoon.config.deprecations import replace_deprecated, without_unused


class Inner(Section):
    DEPRECATED: ClassVar = {
        "size": DeprecatedKey("0.6.0", renamed_to="group_size", former_default=4),
        "odd": DeprecatedKey("0.6.0", instead="even: true"),
    }

    group_size: int | None = 1
    odd: bool = False


class Outer(Section):
    inner: Inner = Inner()
    many: tuple[Inner, ...] = ()
    free: dict[str, Any] = Field(default_factory=dict)


@pytest.mark.parametrize(
    ("given", "expected", "texts"),
    [
        ({"group_size": 2}, {"group_size": 2}, []),
        ({"size": 2}, {"group_size": 2}, ["inner.size is deprecated; use inner.group_size (platoon 0.6.0 removes it)"]),
        ({"size": None}, {"group_size": None}, ["inner.size is deprecated; use inner.group_size"]),
        ({"size": 2, "group_size": 2}, {"group_size": 2}, ["inner.size is deprecated; use"]),
        ({"size": 4, "group_size": 2}, {"group_size": 2}, ["inner.size is deprecated, and is ignored: the new key"]),
        ({"odd": True}, {"odd": True}, ["inner.odd is deprecated; use even: true (platoon 0.6.0 removes it)"]),
    ],
)
def test_a_deprecated_key_still_works(given: Any, expected: Any, texts: list[str]) -> None:
    original = {"inner": dict(given)}
    data, found, problems = replace_deprecated(original, Outer)
    assert data == {"inner": expected}
    assert original == {"inner": given}
    assert problems == []
    assert len(found) == len(texts)
    for text, one in zip(texts, found, strict=True):
        assert str(one).startswith(text)
        assert one.record()["removed_in"] == "0.6.0"
    Outer.model_validate(data)


def test_two_values_that_differ_are_a_problem() -> None:
    _, _, problems = replace_deprecated({"inner": {"size": 3, "group_size": 2}}, Outer)
    assert [str(one) for one in problems] == [
        "inner.size: contradicts inner.group_size, which replaces it; remove this key (got 3)"
    ]


def test_keys_are_found_in_lists_and_left_alone_in_free_form_mappings() -> None:
    data, found, _ = replace_deprecated({"many": [{}, {"size": 3}], "free": {"size": 1}}, Outer)
    assert data == {"many": [{}, {"group_size": 3}], "free": {"size": 1}}
    assert [one.path for one in found] == [("many", 1, "size")]


def test_what_is_no_configuration_is_left_to_the_check() -> None:
    for wrong in ({"inner": 3}, {"inner": [{"size": 1}]}, {"many": {"a": 1}}, {}):
        assert replace_deprecated(wrong, Outer)[0] == wrong or "inner" in wrong


def test_a_dump_leaves_out_what_is_deprecated_and_unused() -> None:
    for many in (Inner(), Inner(odd=True)):
        dump = without_unused(Outer(many=(many,)).model_dump(mode="json"), Outer)
        assert dump["inner"] == {"group_size": 1}
        assert ("odd" in dump["many"][0]) == many.odd
        _, found, _ = replace_deprecated(dump, Outer)
        assert len(found) == many.odd


def test_a_key_counts_as_set_though_it_is_null_and_only_the_former_default_gives_way() -> None:
    for old, new in ((None, 2), (3, None)):
        data, found, problems = replace_deprecated({"inner": {"size": old, "group_size": new}}, Outer)
        assert data == {"inner": {"group_size": new}}
        assert found[0].ignored
        assert len(problems) == 1
    _, (ignored,), problems = replace_deprecated({"inner": {"size": 4, "group_size": 2}}, Outer)
    assert problems == []
    assert str(ignored) == (
        "inner.size is deprecated, and is ignored: the new key is set, too; use inner.group_size "
        "(platoon 0.6.0 removes it)"
    )


def test_an_override_of_a_renamed_key_is_read_by_the_type_of_its_new_name(tmp_path: Path) -> None:
    (tmp_path / "x.yaml").write_text("inner: {size: 3}\n", encoding="utf-8")
    loaded = load_partial(tmp_path / "x.yaml", ["inner.size=none"], schema=Outer)
    assert loaded.config == Outer(inner=Inner(group_size=None))
    assert [one.path for one in loaded.deprecations] == [("inner", "size")]
