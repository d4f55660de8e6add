"""Which values are secrets, and text and data without them: nothing that holds one is written or printed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from platoon.config.problems import KeyPath

SECRET_KEYS = frozenset({"api_key", "password", "secret", "access_token", "auth_token"})


def is_secret(path: KeyPath) -> bool:
    """Whether the value at `path` is a secret."""
    return any(str(part).lower() in SECRET_KEYS for part in path[-1:])


def masked(key: KeyPath, text: str) -> str:
    """The text of a value, hidden when its key is a secret or when it spells the key of one."""
    hidden = is_secret(key) or any(name in text for name in SECRET_KEYS)
    return "..." if hidden else text


def mask_argument(argument: str) -> str:
    """A command-line argument `key=value` with a secret value hidden."""
    key, equals, value = argument.partition("=")
    path = tuple(key.lstrip("-").rstrip("+").split("."))
    return f"{key}={masked(path, value)}" if equals else argument


def split_secrets(value: Any, path: KeyPath = ()) -> tuple[Any, list[KeyPath]]:
    """A copy of plain data without its secrets, and the paths left out."""
    left_out: list[KeyPath] = []
    if isinstance(value, Mapping):
        kept = {}
        for key, item in value.items():
            if is_secret((*path, key)) and item is not None:
                left_out.append((*path, key))
                continue
            kept[key], below = split_secrets(item, (*path, key))
            left_out += below
        return kept, left_out
    if isinstance(value, (list, tuple)):
        items = []
        for index, item in enumerate(value):
            cleaned, below = split_secrets(item, (*path, index))
            items.append(cleaned)
            left_out += below
        return items, left_out
    return value, left_out


def without_secrets(value: Any) -> Any:
    """A copy of plain data without its secrets."""
    return split_secrets(value)[0]
