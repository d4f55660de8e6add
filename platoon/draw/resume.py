"""Reading a saved dispatcher back, and the plan of what becomes of its draws.

Pure: a mapping in, records out. Every outstanding draw gets exactly one place in the plan: kept, drawn again,
waiting again, or lost.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from platoon.draw.pool import TaskPool
from platoon.draw.records import Key, Record

FORMAT = 2
_FORMAT_1 = frozenset({"format", "start", "sampler", "fingerprint", "next_position", "outstanding", "waiting", "kept"})
_FORMAT_2 = _FORMAT_1 | {"drawn", "tokens", "fallback_slots", "samplers"}


@dataclass(frozen=True, slots=True)
class SavedDraw:
    """An outstanding draw of an earlier start. `row_index`, `sampler`: None when the state does not hold them."""

    key: Key
    task_id: str
    position: int
    row_index: int | None = None
    sampler: str | None = None


@dataclass(frozen=True)
class SavedState:
    """A parsed state; `outstanding` in draw order, `waiting` in starting order."""

    start: int
    sampler: str
    next_position: int
    outstanding: Mapping[Key, SavedDraw]
    waiting: tuple[Key, ...]
    samplers: Mapping[str, Any] | None
    tokens: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    fallback_slots: frozenset[int] = frozenset()


@dataclass(frozen=True)
class ResumePlan:
    """`kept` train as they are; `reissue`, then `waiting`, are drawn again; the tasks of `lost` left the pool."""

    kept: tuple[SavedDraw, ...]
    reissue: tuple[SavedDraw, ...]
    waiting: tuple[SavedDraw, ...]
    lost: tuple[SavedDraw, ...]


@dataclass(frozen=True)
class RestoredDraws:
    """What a resume did: its audit records in order, the keys that were kept, and warnings to log."""

    records: tuple[Record, ...]
    kept: tuple[Key, ...]
    warnings: tuple[str, ...] = ()


def read_state(state: Mapping[str, Any]) -> tuple[SavedState, list[str]]:
    """Parse a saved dispatcher and name the parts that had to be dropped.

    ValueError when format, keys, positions or draws do not read. Unreadable `drawn` or `tokens` alone are dropped.
    """
    warnings: list[str] = []
    form = state.get("format")
    expected = {1: _FORMAT_1, 2: _FORMAT_2}.get(form) if isinstance(form, int) else None
    if expected is None:
        raise ValueError(f"dispatcher state: format is {form!r}; this release reads 1 and 2")
    if missing := expected - {"fingerprint", "sampler", "kept"} - state.keys():
        raise ValueError(f"dispatcher state: missing {', '.join(sorted(missing))}")
    if unknown := state.keys() - _FORMAT_2:
        raise ValueError(f"dispatcher state: unknown {', '.join(sorted(unknown))}")
    draws: dict[Key, SavedDraw] = {}
    for row in _rows(state["outstanding"], 4, "outstanding"):
        key = _key(row, "outstanding")
        if key in draws or not isinstance(row[2], str):
            raise ValueError(f"dispatcher state: outstanding draw {row!r} does not read, or is there twice")
        draws[key] = SavedDraw(key, row[2], _count(row[3], "outstanding position"))
    waiting: list[Key] = []
    for label, rows in state["waiting"].items():
        waiting.extend(_key(row, "waiting") for row in _rows(rows, 2, f"waiting {label!r}"))
    if strangers := [key for key in waiting if key not in draws]:
        raise ValueError(f"dispatcher state: waiting draws {strangers[:5]} are not outstanding")
    try:
        _add_drawn(draws, state.get("drawn", []))
    except ValueError as problem:
        warnings.append(f"{problem}; draws are found again by their task ids")
    tokens: dict[str, tuple[int, ...]] = {}
    try:
        tokens = _tokens(state.get("tokens", {}))
    except ValueError as problem:
        warnings.append(f"{problem}; the slots owed to entries are dropped")
    fallback = state.get("fallback_slots", [])
    samplers = state.get("samplers")
    saved = SavedState(
        start=_count(state["start"], "start"),
        sampler=str(state.get("sampler")),
        next_position=_count(state["next_position"], "next_position"),
        outstanding=draws,
        waiting=tuple(sorted(waiting)),
        samplers=samplers if isinstance(samplers, Mapping) else None,
        tokens=tokens,
        fallback_slots=frozenset(fallback if isinstance(fallback, list) else ()),
    )
    return saved, warnings


def plan_resume(saved: SavedState, pool: TaskPool, kept: Iterable[Key]) -> ResumePlan:
    """What becomes of each outstanding draw. `kept`: keys whose groups read back, in settle order.

    Keys of one start ascend in the order of their draws, so sorting by key is sorting by time.
    """
    here = {key: draw for key, draw in saved.outstanding.items() if draw.task_id in pool.first}
    kept_keys = dict.fromkeys(key for key in kept if key in here)
    waiting = [key for key in saved.waiting if key in here and key not in kept_keys]
    parked = set(waiting)
    return ResumePlan(
        kept=tuple(here[key] for key in kept_keys),
        reissue=tuple(here[key] for key in sorted(here) if key not in kept_keys and key not in parked),
        waiting=tuple(here[key] for key in waiting),
        lost=tuple(draw for key, draw in saved.outstanding.items() if key not in here),
    )


def _add_drawn(draws: dict[Key, SavedDraw], rows: object) -> None:
    found: dict[Key, SavedDraw] = {}
    for row in _rows(rows, 4, "drawn"):
        key = _key(row, "drawn")
        index, sampler = row[2], row[3]
        if key not in draws or not isinstance(index, int | None) or not isinstance(sampler, str | None):
            raise ValueError(f"dispatcher state: drawn row {row!r} does not read")
        old = draws[key]
        found[key] = SavedDraw(key, old.task_id, old.position, index, sampler)
    draws.update(found)


def _tokens(value: object) -> dict[str, tuple[int, ...]]:
    if not isinstance(value, Mapping) or any(not isinstance(positions, list) for positions in value.values()):
        raise ValueError("dispatcher state: tokens is not a mapping of entries to positions")
    return {
        str(entry): tuple(_count(position, f"position owed to {entry!r}") for position in positions)
        for entry, positions in value.items()
    }


def _rows(value: object, width: int, where: str) -> list[list[Any]]:
    if not isinstance(value, list) or any(not isinstance(row, list) or len(row) != width for row in value):
        raise ValueError(f"dispatcher state: {where} is not a list of rows of {width}")
    return value


def _key(row: list[Any], where: str) -> Key:
    return _count(row[0], f"{where} start"), _count(row[1], f"{where} seq")


def _count(value: object, where: str) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise ValueError(f"dispatcher state: {where} is {value!r}, not a count")
    return value
