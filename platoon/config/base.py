"""The base of every section of a configuration: strict types, no unknown key, frozen.

Types: a bool is only a bool, an int is not a bool, a numeric text in a number field becomes the number (YAML reads
`3e-5` as text), text is only text. `complete()` fills values that follow from others and yields what is wrong.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Self

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, model_validator
from pydantic_core import PydanticCustomError

from platoon.config.problems import Problem

_NUMBER = re.compile(r"[+-]?(\d[\d_]*\.?[\d_]*|\.\d[\d_]*)([eE][+-]?\d+)?")


def number_of(value: Any) -> Any:
    """A numeric text as the number it spells; anything else as it is."""
    if isinstance(value, str) and _NUMBER.fullmatch(value.strip()):
        return float(value.replace("_", ""))
    return value


def _numbers_in(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _numbers_in(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_numbers_in(item) for item in value]
    return number_of(value)


def _not_blank(value: str) -> str:
    if not value.strip():
        raise ValueError("must not be empty")
    return value


def _directory(value: str) -> str:
    if "\0" in value:
        raise ValueError("must not hold a NUL character")
    if os.path.expanduser(value).startswith("~"):
        raise ValueError("there is no such user; write ./ before a directory of that name")
    return value


Number = Annotated[float, BeforeValidator(number_of), Field(allow_inf_nan=False)]
Positive = Annotated[Number, Field(gt=0)]
NotNegative = Annotated[Number, Field(ge=0)]
Fraction = Annotated[Number, Field(ge=0, le=1)]
Count = Annotated[int, Field(ge=1)]
CountOrZero = Annotated[int, Field(ge=0)]
Text = Annotated[str, AfterValidator(_not_blank)]
Directory = Annotated[Text, AfterValidator(_directory)]
Texts = Annotated[tuple[Text, ...], Field(strict=False)]
NumericMap = Annotated[dict[str, Any], BeforeValidator(_numbers_in)]


@dataclass(frozen=True)
class DeprecatedKey:
    """`renamed_to`: the key of the same section that replaces it; else `instead` says what to write.

    `former_default`: a renamed key with this value gives way to its new name when both are given.
    """

    removed_in: str
    renamed_to: str | None = None
    instead: str = ""
    former_default: Any = ...


class Section(BaseModel):
    """A mapping of the configuration. `HINTS`: unknown key -> what to write instead. `VALUE_HINTS`: key -> refused
    value -> what to write instead. `DEPRECATED`: key that a coming release removes -> its `DeprecatedKey`."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, protected_namespaces=())

    HINTS: ClassVar[Mapping[str, str]] = {}
    VALUE_HINTS: ClassVar[Mapping[str, Mapping[str, str]]] = {}
    DEPRECATED: ClassVar[Mapping[str, DeprecatedKey]] = {}

    def complete(self) -> Iterator[Problem]:
        """Fill what follows from other values (see `derive`), yield what is wrong between them."""
        yield from ()

    def derive(self, **values: Any) -> None:
        """Set fields that the writer left open. Which keys were given (`model_fields_set`) stays as it is."""
        self.__dict__.update(values)

    @model_validator(mode="after")
    def _complete(self) -> Self:
        problems = list(self.complete())
        if problems:
            text = "; ".join(str(problem) for problem in problems)
            raise PydanticCustomError("section", "{text}", {"text": text, "problems": problems})
        return self


def given(section: Section) -> dict[str, Any]:
    """The keys the writer gave, nested sections in part, nulls kept."""
    return section.model_dump(exclude_unset=True)
