from __future__ import annotations

import pytest

import platoon
from platoon.config import ConfigError, Section, load_config, resolve_config
from platoon.config.arguments import split_arguments

from .conftest import MINIMAL, Write


class Own(Section):
    a: int = 1
    deep: dict[str, int] = {}  # noqa: RUF012  pydantic copies it
    flag: bool = False


@pytest.mark.parametrize(
    ("words", "path", "overrides"),
    [
        ("", None, []),
        ("--config x.yaml a.b=1", "x.yaml", ["a.b=1"]),
        ("-c x.yaml", "x.yaml", []),
        ("--config=x.yaml a+=1", "x.yaml", ["a+=1"]),
        ("--a.b=2 --c 3 --d", None, ["a.b=2", "c=3", "d=true"]),
        ("--d --e x=1", None, ["d=true", "e=true", "x=1"]),
    ],
)
def test_arguments_name_a_file_and_overrides(words: str, path: str | None, overrides: list[str]) -> None:
    assert split_arguments(words.split()) == (path, overrides)


def test_every_wrong_argument_is_named() -> None:
    with pytest.raises(ConfigError) as caught:
        split_arguments(["word", "-x", "--", "--config"])
    assert len(caught.value.problems) == 4


def test_a_program_of_ones_own_loads_its_configuration(write: Write) -> None:
    path = write(MINIMAL)
    loaded = load_config(["--config", str(path), "--train.batch_size", "4"])
    assert loaded.data["train"]["batch_size"] == 4
    own = write({"a": 2}, "own.yaml")
    made = load_config(["--flag"], Own, own)
    assert made.config == Own(a=2, flag=True)
    with pytest.raises(ConfigError, match="did you mean deep"):
        load_config(["depp.x=1"], Own, own)
    with pytest.raises(ConfigError, match="give --config FILE"):
        load_config([])
    assert resolve_config(path).kind == "train"


def test_public_names_resolve() -> None:
    for name in dir(platoon):
        assert getattr(platoon, name) is not None
    assert issubclass(platoon.PlatoonDeprecationWarning, FutureWarning)
