"""What a start's dispatch did since one last asked: draws, waits and what was in flight, as metrics.

Pure: the caller passes the time. Memory does not grow with the length of a window.
"""

from __future__ import annotations

from collections import Counter

from platoon.draw.gauges import BlockedShares, Gauge
from platoon.draw.records import Drawn, Fated, Record


class Durations:
    """Count, sum and maximum of durations in seconds; `below` counts those under a bound."""

    def __init__(self, bound: float = 1e-3) -> None:
        self._bound = bound
        self.clear()

    def clear(self) -> None:
        self.count, self.total, self.longest, self.below = 0, 0.0, 0.0, 0

    def add(self, seconds: float) -> None:
        self.count += 1
        self.total += seconds
        self.longest = max(self.longest, seconds)
        self.below += seconds < self._bound

    @property
    def mean(self) -> float:
        return self.total / self.count


class Traffic:
    """Counters of one start. `configured` rollouts may be in flight at once."""

    def __init__(self, now: float, configured: int) -> None:
        self.configured = configured
        self.blocked = BlockedShares(now)
        self.groups, self.rollouts, self.permits = Gauge(now), Gauge(now), Gauge(now)
        self.takes = Durations()
        self.decisions = Durations()
        self._draws: Counter[str] = Counter()
        self._drawn_by: Counter[str] = Counter()
        self._skipped: Counter[str | None] = Counter()

    def note(self, record: Record) -> None:
        """Count a record of the dispatcher."""
        if isinstance(record, Drawn):
            self._draws[record.draw.reason] += 1
            _, at, entry = record.draw.sampler.partition("@")
            if at:
                self._drawn_by[entry] += 1
        elif isinstance(record, Fated) and record.fate == "skipped":
            self._skipped[record.label] += 1

    def in_flight(self, now: float) -> dict[str, float]:
        """Time-weighted counts of the window that ends now; keys as under `rollout_client/`."""
        rollouts, most_rollouts, seconds = self.rollouts.window(now)
        groups, most_groups, _ = self.groups.window(now)
        takes = self.takes
        found = {
            "rollouts_in_flight_mean": rollouts,
            "rollouts_in_flight_max": float(most_rollouts),
            "rollouts_in_flight_configured": float(self.configured),
            "concurrency_achieved_fraction": rollouts / self.configured,
            "groups_in_flight_mean": groups,
            "groups_in_flight_max": float(most_groups),
            "permits_held_mean": self.permits.window(now)[0],
            "window_seconds": seconds,
            "trainer_queue_dequeues": float(takes.count),
        }
        if takes.count:
            found["trainer_queue_wait_seconds_total"] = takes.total
            found["trainer_queue_wait_seconds_mean"] = takes.mean
            found["trainer_queue_wait_seconds_max"] = takes.longest
            found["trainer_queue_ready_fraction"] = takes.below / takes.count
        takes.clear()
        return found

    def blocked_shares(self, now: float) -> dict[str, float]:
        """Shares of the window in which nothing could start, by reason; all five."""
        return {f"dispatch/blocked_share/{reason}": share for reason, share in self.blocked.window(now).items()}

    def sampled(self) -> dict[str, float]:
        """Draws since the last call, by reason and by the entry whose sampler drew, and the time of a decision."""
        found = {"sampler/draws": float(self._draws.total())}
        found |= {f"sampler/draws/{reason}": float(count) for reason, count in self._draws.items()}
        found |= {f"sampler/environment/{entry}/draws": float(count) for entry, count in self._drawn_by.items()}
        if self.decisions.count:
            found["sampler/decision_ms"] = self.decisions.mean * 1e3
            found["sampler/decision_ms_max"] = self.decisions.longest * 1e3
        self._draws = Counter(dict.fromkeys(self._draws, 0))  # a reason once seen goes on at 0
        self._drawn_by.clear()
        self.decisions.clear()
        return found

    def skipped(self) -> dict[str | None, int]:
        """Positions skipped since the last call, by label."""
        found = dict(self._skipped)
        self._skipped.clear()
        return found


def configured_rollouts(budget: int, group_sizes: set[int], *, rolling: bool) -> int:
    """Rollouts that can be in flight at once: the budget, or as many whole groups as fit it."""
    return budget if rolling else min(budget, budget // min(group_sizes) * max(group_sizes))
