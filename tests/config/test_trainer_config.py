"""A config class of one's own, named by an entry."""

from __future__ import annotations

from typing import Any, ClassVar

import pytest

from platoon.config import ConfigError, TrainRun, load
from platoon.config.base import DeprecatedKey
from platoon.config.records import RESOLVED, dump_resolved, start_records
from platoon.envs.named import NamedEnvironments
from platoon.registry import register_trainer_config

from .conftest import MINIMAL, Write

HERE = "tests.config.test_trainer_config"


class Mine(TrainRun):
    """A training run with a key of its own."""

    DEPRECATED: ClassVar = {"anneal": DeprecatedKey("0.7.0", renamed_to="annealing")}

    annealing: float = 0.5


register_trainer_config("acme-config", Mine)
NOT_A_CLASS = 3


def entry(reference: str, **more: Any) -> dict[str, Any]:
    return {**MINIMAL, "environments": [{"service": "a:B", "trainer_config": reference}], **more}


@pytest.mark.parametrize("reference", [f"{HERE}:Mine", f"{HERE}.Mine", "acme-config"])
def test_its_keys_are_read_checked_and_overridden(reference: str, write: Write) -> None:
    path = write(entry(reference, annealing=1))
    loaded = load(path, ["annealing=1e-1"], resolver=NamedEnvironments())
    assert isinstance(loaded.config, Mine)
    assert loaded.config.annealing == 0.1
    dump_resolved(loaded, path.parent / "out" / RESOLVED)
    again = load(path.parent / "out" / RESOLVED, resolver=NamedEnvironments())
    assert again.config == loaded.config.model_copy(update={"log_path": again.data["log_path"]})
    with pytest.raises(ConfigError, match="did you mean annealing"):
        load(path, ["anealing=1"], resolver=NamedEnvironments())
    with pytest.raises(ConfigError, match="annealing: unknown key"):
        load(write({**MINIMAL, "annealing": 1}), resolver=NamedEnvironments())


def test_a_deprecated_key_is_recorded_once_and_resolved_under_its_new_name(write: Write) -> None:
    loaded = load(write(entry("acme-config", anneal=0.25)), resolver=NamedEnvironments())
    record = {"path": "anneal", "replacement": "annealing", "removed_in": "0.7.0"}
    assert start_records(loaded)["deprecations"] == [record]
    dump_resolved(loaded, loaded.path.parent / "out" / RESOLVED)
    again = load(loaded.path.parent / "out" / RESOLVED, resolver=NamedEnvironments())
    assert isinstance(again.config, Mine)
    assert (again.config.annealing, again.deprecations) == (0.25, ())


@pytest.mark.parametrize(
    ("reference", "text"),
    [
        (f"{HERE}:Nothing", "no attribute"),
        (f"{HERE}:NOT_A_CLASS", "not a config class"),
        ("acme-confg", "did you mean acme-config"),
        ("no_module_here:X", "cannot be imported"),
    ],
)
def test_what_names_no_class_is_reported(reference: str, text: str, write: Write) -> None:
    with pytest.raises(ConfigError, match=text):
        load(write(entry(reference)), resolver=NamedEnvironments())


def test_a_class_for_another_command_is_left_alone(write: Write) -> None:
    content = {"inference": {"model_name": "m"}, "environments": entry("acme-config")["environments"]}
    assert load(write(content), resolver=NamedEnvironments()).kind == "eval"


def test_an_override_cannot_change_the_class(write: Write) -> None:
    change = f"environments.0.trainer_config={HERE}:Mine"
    with pytest.raises(ConfigError, match="an override cannot change the config class"):
        load(write({**MINIMAL, "environments": [{"service": "a:B"}]}), [change], resolver=NamedEnvironments())
    assert load(write(entry(f"{HERE}:Mine")), [change], resolver=NamedEnvironments()).config
    two = [{"name": "a", "trainer_config": "acme-config"}, {"name": "b", "trainer_config": f"{HERE}:Mine"}]
    with pytest.raises(ConfigError, match=r"environments.1.trainer_config: acts on the whole run"):
        load(write({**MINIMAL, "environments": two}), resolver=NamedEnvironments())
