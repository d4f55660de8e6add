"""The options of an openreward environment service, checked when it is built."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from typing import Any

_REMOTE_ONLY = ("env_name", "urls", "variant", "api_key", "api_url", "session_urls_env_var", "env_class")
_NOT_BUILT = {
    "result_format": "blocks",
    "bridge_tools": False,
    "log_dir": None,
}


def _names(value: str | Iterable[str]) -> tuple[str, ...]:
    return (value,) if isinstance(value, str) else tuple(value)


@dataclass(frozen=True)
class OrsOptions:
    """Options in process. ValueError names the option, its value and what would be accepted.

    `max_tool_calls`: 0 means no limit. `queue_timeout_s` in seconds, None means no limit. `prompt_filter` is a
    callable or `module:attr` that rewrites the prompt's text.
    """

    split: str = "train"
    label: str | None = None
    max_tool_calls: int = 0
    task_names: tuple[str, ...] | None = None
    task_indices: tuple[int, ...] | None = None
    terminal_tools: tuple[str, ...] = ()
    read_only_tools: tuple[str, ...] = ()
    concurrent_tools: tuple[str, ...] = ()
    queue_timeout_s: float | None = 240.0
    tool_meta: Mapping[str, Mapping[str, Any]] | None = None
    tool_routing_overrides: Mapping[str, Any] | None = None
    result_format: str = "blocks"
    bridge_tools: bool = False
    log_dir: str | None = None
    close_timeout_s: float = 30.0
    secrets: Mapping[str, str] | None = None
    name: str | None = None
    prompt_filter: Any = None
    legacy_global_pool: bool = True
    env_name: str | None = None
    urls: Any = None
    variant: str | None = None
    api_key: str | None = None
    api_url: str | None = None
    session_urls_env_var: str | None = None
    env_class: Any = None

    def __post_init__(self) -> None:
        for key in _REMOTE_ONLY:
            if getattr(self, key) is not None:
                raise ValueError(f"{key} belongs to a remote environment server; this environment runs in process")
        for key, default in _NOT_BUILT.items():
            if getattr(self, key) != default:
                raise ValueError(f"{key}: {getattr(self, key)!r} is not available yet; leave it out")
        for key in ("terminal_tools", "read_only_tools", "concurrent_tools"):
            object.__setattr__(self, key, _names(getattr(self, key)))
        self._check_selection()
        self._check_numbers()

    def _check_selection(self) -> None:
        if self.task_names is not None and self.task_indices is not None:
            raise ValueError("task_names and task_indices cannot be given together")
        if self.task_names is not None:
            object.__setattr__(self, "task_names", _names(self.task_names))
        if self.task_indices is not None:
            indices = tuple(self.task_indices)
            if any(isinstance(index, bool) or not isinstance(index, int) or index < 0 for index in indices):
                raise ValueError(f"task_indices must be whole numbers from 0, not {list(indices)!r}")
            object.__setattr__(self, "task_indices", indices)

    def _check_numbers(self) -> None:
        calls = self.max_tool_calls
        if isinstance(calls, bool) or not isinstance(calls, int) or calls < 0:
            raise ValueError(f"max_tool_calls must be a whole number from 0 (0 means no limit), not {calls!r}")
        for key in ("queue_timeout_s", "close_timeout_s"):
            value = getattr(self, key)
            if key == "queue_timeout_s" and value is None:
                continue
            if isinstance(value, bool) or not isinstance(value, int | float) or not value > 0:
                raise ValueError(f"{key} must be a positive number of seconds, not {value!r}")


OPTION_NAMES = tuple(item.name for item in fields(OrsOptions))
