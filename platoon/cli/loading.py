"""What every command that reads a configuration does first."""

from __future__ import annotations

import logging
import shlex
import sys
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

from platoon.config import ConfigError, Loaded, add_project_path, load
from platoon.config.deprecations import Deprecation, PlatoonDeprecationWarning
from platoon.config.service_address import is_local, service_address
from platoon.config.site import isolation_problems
from platoon.config.warnings import load_warnings


def load_config(path: Path, overrides: Sequence[str], kind: Literal["auto", "train", "eval"] = "auto") -> Loaded:
    """Load a file with its named environments; its directory can be imported from. Raises ConfigError."""
    from platoon.envs.named import NamedEnvironments

    add_project_path(path)
    return load(path, overrides, kind=kind, resolver=NamedEnvironments())


def warn(loaded: Loaded) -> None:
    """Print what the site profile gave, and what loads but probably does not do what its writer meant. Raises
    ConfigError for a deprecated key when Python's warning filters make errors of such."""
    for line in loaded.site.lines():
        print(f"platoon: {line}", file=sys.stderr)
    for deprecation in loaded.deprecations:
        report_deprecation(deprecation)
    for text in load_warnings(loaded.config):
        print(f"platoon: warning: {text}", file=sys.stderr)


def report_deprecation(deprecation: Deprecation) -> None:
    """Print a deprecated key, once a command, unless Python's warning filters ignore it."""
    with warnings.catch_warnings(record=True) as caught:
        try:
            warnings.warn(str(deprecation), PlatoonDeprecationWarning, stacklevel=2)
        except PlatoonDeprecationWarning as error:
            raise ConfigError(str(error)) from None
    if caught:
        print(f"platoon: {deprecation}", file=sys.stderr)


def refuse_unisolated(loaded: Loaded) -> None:
    """ConfigError for sandboxes that would not isolate without the configuration asking for that."""
    if problems := isolation_problems(loaded.site):
        raise ConfigError(problems)


def check_key(loaded: Loaded) -> None:
    """ConfigError, in one line, when the service is elsewhere and its key is missing or cannot be one."""
    if not is_local(loaded.config.tinker_base_url):
        service_address(loaded.config.tinker_base_url)


@contextmanager
def told_to_prepare(config: Path, overrides: Sequence[str]) -> Iterator[None]:
    """What is found unprepared within is a configuration error that ends with the command that prepares it."""
    from platoon.rollout.outcome import EnvNotPrepared

    try:
        yield
    except EnvNotPrepared as error:
        command = shlex.join(["platoon", "prepare", str(config), *overrides])
        raise ConfigError([*str(error).splitlines(), command], "not prepared; the last line prepares it") from error


def log_to_stderr() -> None:
    """Log lines of a running command: time, level, logger and message on stderr."""
    logging.basicConfig(
        level=logging.INFO,
        stream=sys.stderr,
        format="%(asctime)s | %(levelname)s | %(name)s | %(message)s",
        datefmt="%Y-%m-%d %H:%M:%S",
    )
    for name in ("httpx", "httpcore", "tinker", "uvicorn"):  # a line a request tells a user nothing
        logging.getLogger(name).setLevel(logging.WARNING)
