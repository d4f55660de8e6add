"""What a start's dispatch did since one last asked: draws, waits and what was in flight, as metrics.

Pure: the caller passes the time. Memory does not grow with the length of a window.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping

from platoon.draw.gauges import BlockedShares, Gauge
from platoon.draw.records import Draw, Drawn, Fated, Record, SlotSkipped


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
        self._decisions: dict[str | None, Durations] = {}
        self._draws: Counter[str] = Counter()
        self._drawn_by: dict[str, Counter[str]] = {}
        self._skipped_slots: Counter[str] = Counter()
        self._owed: set[str] = set()
        self._keys: dict[str, ReasonKeys] = {}
        self._skipped: Counter[str | None] = Counter()

    def note(self, record: Record) -> None:
        """Count a record of the dispatcher."""
        if isinstance(record, Drawn):
            draw = record.draw
            reason = self._keys.setdefault(draw.sampler, ReasonKeys()).key(draw.reason)
            self._draws[reason] += 1
            if (entry := entry_of(draw.sampler)) is not None:
                self._drawn_by.setdefault(entry, Counter())[reason] += 1
        elif isinstance(record, SlotSkipped):
            self._skipped_slots[record.entry] += 1
        elif isinstance(record, Fated) and record.fate == "skipped":
            self._skipped[record.label] += 1

    def decided(self, draw: Draw, seconds: float) -> None:
        """A decision took so long: it counts for the run, and for the entry whose sampler drew."""
        for place in {None, entry_of(draw.sampler)}:
            self._decisions.setdefault(place, Durations()).add(seconds)

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

    def sampled(self, owed: Mapping[str, int]) -> dict[str, float]:
        """Draws since the last call, by reason and by the entry whose sampler drew, and the time of a decision.

        `owed`: slots that wait for their entry's sampler now; an entry once seen goes on at 0.
        """
        found = {"sampler/draws": float(self._draws.total())}
        found |= {f"sampler/draws/{reason}": float(count) for reason, count in self._draws.items()}
        for entry, counts in self._drawn_by.items():
            place = f"sampler/environment/{entry}/draws"
            found[place] = float(counts.total())
            found |= {f"{place}/{reason}": float(count) for reason, count in counts.items()}
        for entry_or_run, durations in self._decisions.items():
            place = "sampler" if entry_or_run is None else f"sampler/environment/{entry_or_run}"
            found[f"{place}/decision_ms"] = durations.mean * 1e3
            found[f"{place}/decision_ms_max"] = durations.longest * 1e3
        self._owed |= owed.keys() | self._skipped_slots.keys()
        for entry in self._owed:
            found[f"sampler/environment/{entry}/tokens"] = float(owed.get(entry, 0))
            found[f"sampler/environment/{entry}/skipped_slots"] = float(self._skipped_slots[entry])
        self._draws = Counter(dict.fromkeys(self._draws, 0))  # a reason once seen goes on at 0
        self._drawn_by.clear()
        self._decisions.clear()
        self._skipped_slots.clear()
        return found

    def skipped(self) -> dict[str | None, int]:
        """Positions skipped since the last call, by label."""
        found = dict(self._skipped)
        self._skipped.clear()
        return found


class ReasonKeys:
    """Reasons as parts of metric keys: platoon's own and the first 16 that read well, `other` for the rest."""

    _OWN = frozenset({"fallback", "reissue"})
    _WORD = re.compile(r"[a-z][a-z0-9_]{0,31}")

    def __init__(self) -> None:
        self._known: set[str] = set()

    def key(self, reason: str) -> str:
        if reason in self._OWN or reason in self._known:
            return reason
        if len(self._known) < 16 and self._WORD.fullmatch(reason):
            self._known.add(reason)
            return reason
        return "other"


def entry_of(sampler: str) -> str | None:
    """The entry of a qualified sampler name; None for the run's."""
    _, at, entry = sampler.partition("@")
    return entry if at else None


def configured_rollouts(budget: int, group_sizes: set[int], *, rolling: bool) -> int:
    """Rollouts that can be in flight at once: the budget, or as many whole groups as fit it."""
    return budget if rolling else min(budget, budget // min(group_sizes) * max(group_sizes))
