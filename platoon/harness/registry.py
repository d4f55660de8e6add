"""Which harness a reference names: `name[@version]`, `module:function`, or a name another distribution brings.

A harness's module is imported when it is named, never before. Specs in TOML files are not read yet and are refused
by name.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

from platoon.config.problems import ConfigError, nearest
from platoon.extensions.entry_points import distribution, installed, load
from platoon.extensions.names import (
    RESERVED_HARNESSES,
    check_name,
    check_version,
    import_string,
    is_reserved,
    split_reference,
    version_matches,
)
from platoon.harness.contract import AgentResult

Runtime = Literal["inline"]
HarnessFn = TypeVar("HarnessFn", bound=Callable[..., Awaitable[AgentResult]])
_log = logging.getLogger("platoon.extensions")
_MARK = "__platoon_harness__"
_CORE = {"platoon-react": "platoon.harness.react:react", "platoon-noop": "platoon.harness.noop:noop"}
_UNBUILT = ("platoon-bash", "platoon-codeact", "platoon-oracle", "mini-swe-agent", "openhands")
_registered: dict[str, dict[str, FunctionHarness]] = {}


@dataclass(frozen=True)
class FunctionHarness:
    """An async function `fn(ctx) -> AgentResult`. ValueError when name, version or function break the rules."""

    name: str
    version: str
    runtime: Runtime
    executes_model_code: bool
    fn: Callable[..., Awaitable[AgentResult]]

    def __post_init__(self) -> None:
        if not inspect.iscoroutinefunction(self.fn):
            raise ValueError(f"harness {self.name!r}: {self.source} must be an async function (async def)")
        if self.runtime != "inline":
            raise ValueError(f"harness {self.name!r}: runtime {self.runtime!r} is not 'inline'")

    @property
    def ref(self) -> str:
        return f"{self.name}@{self.version}"

    @property
    def source(self) -> str:
        """Where the function is defined: `module:qualname`."""
        return f"{getattr(self.fn, '__module__', '?')}:{getattr(self.fn, '__qualname__', repr(self.fn))}"


@dataclass(frozen=True)
class HarnessListing:
    """A line of `platoon harness list`. `kind` is `-` where nothing was imported to find out."""

    ref: str
    kind: str
    distribution: str
    source: str


def harness(
    name: str, *, version: str = "1", runtime: Runtime = "inline", executes_model_code: bool = False
) -> Callable[[HarnessFn], HarnessFn]:
    """Decorator: register an async function of one `AgentContext` as a harness; the function is returned unchanged.

    ValueError for a name that breaks the rules, is reserved, or already belongs to another function.
    """

    def mark(fn: HarnessFn) -> HarnessFn:
        register(FunctionHarness(name, version, runtime, executes_model_code, fn))
        return fn

    return mark


def register(harness: FunctionHarness) -> None:
    """Make a harness known by name and mark its function."""
    check_name("harness", harness.name)
    check_version("harness", harness.version)
    module = getattr(harness.fn, "__module__", "") or ""
    if is_reserved(harness.name, RESERVED_HARNESSES) and module.partition(".")[0] != "platoon":
        raise ValueError(f"harness name {harness.name!r} is reserved for platoon itself; choose one of your own")
    versions = _registered.setdefault(harness.name, {})
    known = versions.get(harness.version)
    if known is not None and known.source != harness.source:
        raise ValueError(
            f"harness {harness.ref} is already registered by {known.source}; {harness.source} needs its own"
        )
    versions[harness.version] = harness
    setattr(harness.fn, _MARK, harness)


def get_harness(reference: str) -> FunctionHarness:
    """The harness that a reference names. ConfigError says what is wrong and which names there are."""
    if reference.endswith(".toml"):
        raise ConfigError(f"harness {reference!r}: specs in TOML files are not built yet; name a Python harness")
    if ":" in reference:
        return _import(reference.removeprefix("python://"))
    name, wanted = split_reference(reference)
    if name in _UNBUILT:
        raise ConfigError(f"harness {name!r} is not built yet; use platoon-react or a harness of your own")
    if name in _CORE:
        import_string(_CORE[name])
    elif name not in _registered:
        _load_entry_point(name)
    versions = _registered.get(name, {})
    if not versions:
        raise ConfigError(_unknown(name))
    matching = [item for version, item in versions.items() if wanted is None or version_matches(wanted, version)]
    if len(matching) == 1:
        return matching[0]
    refs = ", ".join(item.ref for item in versions.values())
    if not matching:
        raise ConfigError(f"harness {name!r} has no version {wanted!r}; there are {refs}")
    raise ConfigError(f"harness {reference!r} fits several versions: {refs}; name one")


def core_harnesses() -> dict[str, str]:
    """The harnesses that platoon itself brings: name -> where the function is."""
    return dict(_CORE)


def list_harnesses() -> list[HarnessListing]:
    """Built-in, registered and installed harnesses; installed ones are not imported."""
    rows = {}
    for name, source in _CORE.items():
        harness = get_harness(name)
        rows[harness.ref] = HarnessListing(harness.ref, "function", "platoon", source)
    for versions in _registered.values():
        for harness in versions.values():
            rows.setdefault(harness.ref, HarnessListing(harness.ref, "function", "-", harness.source))
    for name, point in installed("harness").items():
        if name not in _registered:
            rows.setdefault(name, HarnessListing(name, "-", distribution(point), point.value))
    return [rows[ref] for ref in sorted(rows)]


def _import(reference: str) -> FunctionHarness:
    try:
        found = import_string(reference)
    except (ImportError, ValueError) as error:
        raise ConfigError(f"harness {reference!r} cannot be imported: {error}") from error
    return _as_harness(found, reference)


def _as_harness(found: Any, reference: str) -> FunctionHarness:
    if isinstance(found, FunctionHarness):
        return found
    marked = getattr(found, _MARK, None)
    if isinstance(marked, FunctionHarness):
        return marked
    if not callable(found):
        raise ConfigError(f"harness {reference!r} is {found!r}, not an async function")
    try:
        return FunctionHarness(reference, "1", "inline", False, found)
    except ValueError as error:
        raise ConfigError(str(error)) from error


def _load_entry_point(name: str) -> None:
    """Import what brings `name`. An entry point may be named after its module instead of the harness: when none has
    the name itself, all are loaded once to find out."""
    try:
        value = load("harness", name, _reserved)
    except ValueError as error:
        raise ConfigError(str(error)) from error
    if value is not None:
        _register_loaded(name, value)
    elif not _reserved(name):
        _load_others(name)


def _load_others(name: str) -> None:
    for other, point in installed("harness").items():
        try:
            value = load("harness", other, _reserved)
            if value is not None:
                _register_loaded(other, value)
        except (ValueError, ConfigError) as error:
            _log.debug("entry point %s: %s", other, error)
        if name in _registered:
            text = "harness %s was found through the entry point %s of %s; name the entry point after the harness"
            _log.warning(text, name, other, distribution(point))
            return


def _register_loaded(name: str, value: Any) -> None:
    """Take in what an entry point gives: a function, a FunctionHarness, a module that registers, or a list of these."""
    for item in value if isinstance(value, list | tuple) else [value]:
        if isinstance(item, FunctionHarness):
            register(item)
        elif callable(item) and not hasattr(item, _MARK) and not inspect.ismodule(item):
            raise ConfigError(f"harness {name!r}: its entry point gives {item!r}, which @platoon.harness does not mark")


def _reserved(name: str) -> bool:
    return is_reserved(name, RESERVED_HARNESSES)


def _unknown(name: str) -> str:
    known = sorted({*_CORE, *_registered, *installed("harness")})
    close = nearest(name, known)
    hint = f"; did you mean {close}?" if close else ""
    return (
        f"no harness is named {name!r}; there are {', '.join(known)}, and one of your own as module:function or "
        f"registered by the entry's `package`{hint}"
    )
