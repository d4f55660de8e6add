"""Evidence that fades with the policy's version: half of its weight every `half_life` versions.

The order of additions decides the last bits of a sum, so callers add in draw order. Newer evidence first decays what
is there; older evidence is discounted before it is added, and the version stays.
"""

from __future__ import annotations

from dataclasses import dataclass


def weight(age: float, half_life: float) -> float:
    """1 for an age of 0 or less, else 2 ** (-age / half_life)."""
    return 1.0 if age <= 0 else float(2.0 ** (-age / half_life))


@dataclass
class Decayed:
    """Two sums that decay together, as of `version` (None: nothing yet).

    Passes and fails of a task; or the total and the weight of a mean.
    """

    first: float = 0.0
    second: float = 0.0
    version: int | None = None

    def add(self, first: float, second: float, version: int, half_life: float) -> None:
        """Take in evidence gathered at `version`."""
        if self.version is None or version >= self.version:
            factor = 1.0 if self.version is None else weight(version - self.version, half_life)
            self.first = self.first * factor + first
            self.second = self.second * factor + second
            self.version = version
        else:
            factor = weight(self.version - version, half_life)
            self.first += first * factor
            self.second += second * factor

    def read(self, now: int, half_life: float) -> tuple[float, float]:
        """Both sums as of version `now`; they never grow when `now` is older."""
        if self.version is None:
            return 0.0, 0.0
        factor = weight(now - self.version, half_life)
        return self.first * factor, self.second * factor

    def as_list(self) -> list[float | int | None]:
        """The form that snapshots hold."""
        return [self.first, self.second, self.version]
