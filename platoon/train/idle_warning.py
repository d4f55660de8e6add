"""Says that steps pass without an update, and what became of their groups and rollouts.

A step whose groups all failed, or gave every rollout the same reward, is a step like any other for the run: its
positions are used. Only words tell that nothing is learned; they are a warning unless every rollout solved its task.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from platoon.stats.metrics import Dequeued

log = logging.getLogger("platoon.train")
SAID_AT = (3, 10, 30, 100, 300, 1000)  # steps in a row without an update; and at the first one of a start
SOLVED = "that every rollout solved"
WORDS = {
    "all_pass": SOLVED,
    "all_fail": "that no rollout solved",
    "uniform_mixed": "of equal rewards",
    "uniform": "of equal rewards",
    "no_results": "without a rollout that came to an end",
    "below_min": "with too few graded rollouts",
    "no_completed_root": "without a completed rollout",
    "no_datums": "without tokens to train on",
    "reward_key_mismatch": "graded under several reward keys",
}


@dataclass
class IdleWarning:
    """Watches the steps of one start."""

    steps: int = 0
    updates: int = 0
    _row: int = 0
    _said: bool = False

    def step(self, number: int, updates: int, items: Sequence[Dequeued]) -> str | None:
        """Take in a step: its number, its updates and the groups it used. The warning given."""
        self.steps += 1
        self.updates += updates
        self._row = 0 if updates else self._row + 1
        if not self._row or (self._said and self._row not in SAID_AT):
            return None
        self._said = True
        which = f"step {number}" if self._row == 1 else f"step {number}, as the {self._row - 1} before it,"
        text = f"{which} updated nothing: {became_of(items)}"
        log.log(logging.INFO if items and all(_word(item) == SOLVED for item in items) else logging.WARNING, "%s", text)
        return text

    def ended(self) -> str | None:
        """What to say of a start that trained steps and learned nothing."""
        if not self.steps or self.updates:
            return None
        return f"none of the {self.steps} steps of this start updated the policy: its weights are those it began with"


def became_of(items: Sequence[Dequeued]) -> str:
    """Groups by verdict and their rollouts by outcome, most frequent first."""
    groups = Counter("stale" if item.stale else _word(item) for item in items)
    outputs = [item.output for item in items if item.output is not None]
    outcomes = Counter(member.outcome for output in outputs for member in output.members)
    rollouts = f" (rollouts by outcome: {_counts(outcomes)})" if outcomes else ""
    return f"of {len(items)} groups {_counts(groups)}{rollouts}" if items else "no group was left to take"


def _word(item: Dequeued) -> str:
    verdict = item.output.verdict if item.output is not None else "failed"
    kind = item.record.kind(item.threshold) if item.record is not None else None
    return WORDS.get(kind or verdict, verdict)


def _counts(found: Counter[str]) -> str:
    return ", ".join(f"{count} {what}" for what, count in found.most_common())
