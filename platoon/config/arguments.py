"""Loading a configuration from the arguments of a program of one's own: `python my_run.py --config run.yaml a.b=3`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from platoon.config.base import Section
from platoon.config.load import Loaded, Resolver, load
from platoon.config.partial import Partial, load_partial
from platoon.config.problems import ConfigError
from platoon.config.runs import EvalRun, TrainRun


def load_config(
    args: Sequence[str],
    config_class: type[Section] = TrainRun,
    default_config_path: str | Path | None = None,
    *,
    resolver: Resolver | None = None,
) -> Loaded | Partial:
    """The configuration that arguments name. Taken: `--config P`, `-c P`, `--config=P`, `key=value`, `key+=value`,
    `--key=value`, `--key value`, and a bare `--key` for true. Raises ConfigError for anything else."""
    path, overrides = split_arguments(args)
    chosen = path if path is not None else default_config_path
    if chosen is None:
        raise ConfigError("no configuration is named; give --config FILE")
    if config_class is TrainRun:
        return load(chosen, overrides, kind="train", resolver=resolver)
    if config_class is EvalRun:
        return load(chosen, overrides, kind="eval", resolver=resolver)
    return load_partial(chosen, overrides, schema=config_class, resolver=resolver)


def split_arguments(args: Sequence[str]) -> tuple[str | None, list[str]]:
    """The configuration's path (None without one) and the overrides. Raises ConfigError, naming every wrong one."""
    path: str | None = None
    overrides: list[str] = []
    problems: list[str] = []
    rest = list(args)
    while rest:
        word = rest.pop(0)
        option, equals, value = word.partition("=")
        if option in ("--config", "-c"):
            if not equals and not rest:
                problems.append(f"{word} needs the path of a configuration")
                continue
            path = value if equals else rest.pop(0)
        elif word.startswith("--") and len(option) > 2:
            if not equals:
                value = rest.pop(0) if rest and _is_value(rest[0]) else "true"
            overrides.append(f"{option[2:]}={value}")
        elif equals and not word.startswith("-"):
            overrides.append(word)
        else:
            problems.append(f"{word!r} is neither an option nor an override; write key=value")
    if problems:
        raise ConfigError(problems, "the arguments cannot be read")
    return path, overrides


def _is_value(word: str) -> bool:
    return not word.startswith("-") and "=" not in word
