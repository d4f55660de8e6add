"""Collects the metrics of a step. A value recorded several times in a step is exported as a mean."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass


@dataclass
class _Sum:
    total: float = 0.0
    count: int = 0
    low: float = float("inf")
    high: float = float("-inf")

    def add(self, value: float) -> None:
        self.total += value
        self.count += 1
        self.low, self.high = min(self.low, value), max(self.high, value)


class Tracker:
    """Three kinds under one name, which prefixes every key.

    scalar: mean over the calls, and `<key>__count`, their number. denominator: a sum of flags, an int. stat:
    `<key>/avg`, `/min`, `/max` and `<key>/count` over all values; absent without any.
    """

    def __init__(self, name: str = "train") -> None:
        self._prefix = f"{name}/" if name else ""
        self._scalars: dict[str, _Sum] = {}
        self._denominators: dict[str, int] = {}
        self._stats: dict[str, _Sum] = {}

    def scalar(self, values: Mapping[str, float] | None = None, /, **more: float) -> None:
        """Record one value under each key."""
        for key, value in {**(values or {}), **more}.items():
            self._scalars.setdefault(key, _Sum()).add(float(value))

    def denominator(self, values: Mapping[str, Iterable[bool] | int] | None = None, /) -> None:
        """Add flags (or a number of them) to each key's count."""
        for key, flags in (values or {}).items():
            count = flags if isinstance(flags, int) else sum(bool(flag) for flag in flags)
            self._denominators[key] = self._denominators.get(key, 0) + count

    def stat(self, values: Mapping[str, Iterable[float]]) -> None:
        """Record any number of values under each key."""
        for key, found in values.items():
            for value in found:
                self._stats.setdefault(key, _Sum()).add(float(value))

    def export_and_clear(self) -> dict[str, float]:
        """Everything recorded since the last export."""
        found: dict[str, float] = {}
        for key, scalar in self._scalars.items():
            found[key] = scalar.total / scalar.count
            found[f"{key}__count"] = scalar.count
        found |= self._denominators
        for key, stat in self._stats.items():
            found[f"{key}/avg"] = stat.total / stat.count
            found[f"{key}/min"], found[f"{key}/max"] = stat.low, stat.high
            found.setdefault(f"{key}/count", stat.count)
        self._scalars, self._denominators, self._stats = {}, {}, {}
        return {self._prefix + key: value for key, value in found.items()}
