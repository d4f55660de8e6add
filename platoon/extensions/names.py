"""Names, versions and import strings of components: their grammar and who may use which.

Nothing here imports a component; `import_string` does when asked.
"""

from __future__ import annotations

import re
from importlib import import_module
from typing import Any

_NAME = re.compile(r"[a-z0-9]+(?:[._-][a-z0-9]+)*")
_VERSION = re.compile(r"[0-9A-Za-z]+(?:[._+-][0-9A-Za-z]+)*")
RESERVED_HARNESSES = frozenset({"mini-swe-agent", "openhands"})
RESERVED_PROGRAMS = frozenset({"single", "gym"})


def check_name(kind: str, name: str) -> str:
    """`name` when it follows the rules, else ValueError."""
    if not _NAME.fullmatch(name) or name.endswith(".toml"):
        raise ValueError(
            f"{kind} name {name!r}: use lower-case letters and digits in words joined by '.', '_' or '-', "
            "not ending in '.toml'"
        )
    return name


def check_version(kind: str, version: str) -> str:
    """`version` when it follows the rules, else ValueError."""
    if not isinstance(version, str) or not _VERSION.fullmatch(version):
        raise ValueError(f"{kind} version {version!r}: use letters and digits joined by '.', '_', '+' or '-'")
    return version


def is_reserved(name: str, also: frozenset[str] = frozenset()) -> bool:
    """True for names kept for platoon itself: the owner `platoon`, and those in `also`."""
    return re.split(r"[._-]", name, maxsplit=1)[0] == "platoon" or name in also


def is_core(distribution: str) -> bool:
    """True for the distributions `platoon` and `platoon-*`."""
    normal = re.sub(r"[-_.]+", "-", distribution).lower()
    return normal == "platoon" or normal.startswith("platoon-")


def split_reference(reference: str) -> tuple[str, str | None]:
    """`name[@version]` in its two parts."""
    name, found, version = reference.partition("@")
    return name, version if found else None


def version_matches(wanted: str, version: str) -> bool:
    """True when `wanted` is `version` or a prefix of it that ends at a dot: `2` takes `2.4.6`."""
    return version == wanted or version.startswith(wanted + ".")


def import_string(reference: str) -> Any:
    """The object named `module:attr[.attr]`. ImportError or ValueError says which part is wrong."""
    module_name, found, path = reference.partition(":")
    if not found or not module_name or not path:
        raise ValueError(f"{reference!r} is not of the form 'module:attribute'")
    target: Any = import_module(module_name)
    for part in path.split("."):
        try:
            target = getattr(target, part)
        except AttributeError:
            raise ImportError(f"module {module_name!r} has no attribute {path!r}") from None
    return target


def source_of(found: Any, reference: str = "") -> str:
    """Where a class or function is defined, `module:qualname`; the reference for an object that does not say."""
    module, name = getattr(found, "__module__", None), getattr(found, "__qualname__", None)
    return f"{module}:{name}" if module and name else reference.removeprefix("python://")
