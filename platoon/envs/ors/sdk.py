"""Loads the openreward SDK and the environment classes served with it.

The import takes seconds, so it happens on first use, in the process that serves the environment. Synchronous
environment code is moved off the SDK's executor onto threads of its own, and the SDK's log line per call is
silenced: it would land in a command's standard output.
"""

from __future__ import annotations

import logging
import os
from functools import cache
from importlib import import_module
from typing import Any

from platoon.envs.ors.threads import run_user_callable
from platoon.extensions.names import import_string

_PATCHED = ("openreward.environments.environment", "openreward.environments.session")


@cache
def load_sdk() -> Any:
    """The module `openreward.environments`, ready to serve in this process. ImportError names the extra to install."""
    os.environ.setdefault("OPENREWARD_DISABLE_UPDATE_CHECK", "1")
    try:
        sdk = import_module("openreward.environments")
        modules = [import_module(name) for name in _PATCHED]
    except ImportError as error:
        raise ImportError(
            f"environments of this kind need the openreward SDK ({error}); install it with: pip install 'platoon[ors]'"
        ) from error
    for module in modules:
        vars(module)["run_user_callable"] = run_user_callable
    if not os.environ.get("OPENREWARD_LOG_LEVEL"):
        _quieten(modules)
    return sdk


def _quieten(modules: list[Any]) -> None:
    """Send the SDK's own log lines to Python's logging, and only its errors: refused calls are everyday events here."""
    structlog = import_module("structlog")
    for module in modules:
        if hasattr(module, "logger"):
            module.logger = structlog.wrap_logger(
                logging.getLogger(module.__name__),
                processors=[structlog.processors.format_exc_info, structlog.processors.KeyValueRenderer()],
                wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR),
            )


def environment_class(reference: str | type) -> type:
    """The environment class named `pkg.mod:Class`, with task caches of its own.

    The SDK finds its caches through the base classes; without this a subclass would list its parent's tasks.
    """
    sdk = load_sdk()
    found = import_string(reference) if isinstance(reference, str) else reference
    if not (isinstance(found, type) and issubclass(found, sdk.Environment)):
        raise TypeError(f"{reference} is not a class derived from openreward.environments.Environment: {found!r}")
    cls: Any = found
    for name in ("_tasks_cache", "_tasks_cache_locks"):
        if name not in vars(cls):
            setattr(cls, name, {})
    return found


def call_session_tool(env: Any, name: str, arguments: dict[str, Any]) -> Any:
    """The SDK's own dispatch of one call to a live environment; an awaitable of its `RunToolOutput`."""
    return import_module(_PATCHED[1]).call_session_tool(env, None, name, arguments)


def list_session_tools(env: Any) -> Any:
    """The SDK's listing of class tools, task tools and toolsets; an awaitable of its `ListToolsOutput`."""
    return import_module(_PATCHED[1]).list_session_tools(env, None)
