"""Says once that too many groups go stale, with the reason that blocked the run most and what to change."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field

log = logging.getLogger("platoon.train")
STEPS = 10
SHARE = 0.02
HORIZON_SHARE = 0.05
_BLOCKED = "train/dispatch/blocked_share/"


@dataclass
class StaleWarning:
    """Watches the last ten steps of a run with a staleness bound (None: it never warns)."""

    bound: int | None
    _steps: deque[tuple[int, int, Mapping[str, float]]] = field(default_factory=lambda: deque(maxlen=STEPS))
    _said: bool = False

    def step(self, stale: int, consumed: int, metrics: Mapping[str, float]) -> str | None:
        """Take in a step: its stale groups, those it consumed (stale ones included), its metrics. The warning given."""
        shares = {k.removeprefix(_BLOCKED): v for k, v in metrics.items() if k.startswith(_BLOCKED)}
        self._steps.append((stale, consumed, shares))
        if self.bound is None or self._said or len(self._steps) < STEPS:
            return None
        total = sum(consumed for _, consumed, _ in self._steps)
        share = sum(stale for stale, _, _ in self._steps) / total if total else 0.0
        if share <= SHARE:
            return None
        self._said = True
        text = self._text(share, self.bound)
        log.warning("%s", text)
        return text

    def _text(self, share: float, bound: int) -> str:
        reasons = {reason for _, _, shares in self._steps for reason in shares}
        means = {r: sum(shares.get(r, 0.0) for _, _, shares in self._steps) / len(self._steps) for r in reasons}
        most = max(sorted(means), key=lambda reason: means[reason], default=None)
        waited = f"; what blocked rollouts most was {most} ({means[most]:.0%} of the time)" if most is not None else ""
        if means.get("horizon", 0.0) < HORIZON_SHARE:
            effect = "this changes only which groups are dropped"
        else:
            effect = "this also lets rollouts run further ahead, so that data ages more"
        return (
            f"{share:.0%} of the groups of the last {STEPS} steps were stale and not trained{waited}; "
            f"consider train.max_staleness: {bound + 1} ({effect})"
        )
