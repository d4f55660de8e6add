"""Thinning of subagent datums: a hash decides, so scheduling and restarts never change the choice."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from platoon.credit.datum import Datum


@dataclass(frozen=True)
class SubagentSampling:
    """Keep a subagent's datum with `probability`; the root's datums always stay."""

    probability: float = 1.0
    seed: int = 0

    def keeps(self, task_id: str, trajectory_id: str, depth: int, index: int) -> bool:
        """Whether datum `index` of a trajectory at `depth` stays."""
        if depth == 0 or self.probability >= 1.0:
            return True
        if self.probability <= 0.0:
            return False
        key = f"{self.seed}\0{task_id}\0{trajectory_id}\0{depth}\0{index}"
        drawn = int.from_bytes(hashlib.sha256(key.encode()).digest()[:8], "big")
        return drawn < int(self.probability * 2**64)


def count_sampled(counts: Counter[str], datum: Datum, *, kept: bool) -> None:
    """Add one eligible datum to the `subagent_sampling/*` counts, in total and for its depth."""
    for place in ("subagent_sampling", f"subagent_sampling/depth_{datum.depth}"):
        for stage in ("eligible", "retained") if kept else ("eligible",):
            counts[f"{place}/{stage}_datums"] += 1
            counts[f"{place}/{stage}_attention_tokens"] += datum.attention_tokens
            counts[f"{place}/{stage}_loss_tokens"] += datum.action_tokens


def sampling_stats(counts: Mapping[str, int]) -> dict[str, float]:
    """The counts with every retained twin present, also at 0."""
    named = dict(counts)
    for key in counts:
        named.setdefault(key.replace("/eligible_", "/retained_"), 0)
    return {key: float(value) for key, value in named.items()}
