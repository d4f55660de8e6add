"""The tasks of `platoon-number-search`: find a hidden number between two bounds.

Generated from one seed, the same on every machine, once per process. Free of openreward, so that a config can be
checked and its tasks listed without loading it.
"""

from __future__ import annotations

import hashlib
import random
from functools import cache
from typing import Any, NamedTuple

SPLITS: tuple[str, ...] = ("train", "val")
_SEED = 42
_SIZES = {"train": 50_000, "val": 1_000}
_TOP = 1024


class Triple(NamedTuple):
    """The target lies between `low` and `high`, bounds included where the range ends."""

    low: int
    target: int
    high: int


def triples(split: str) -> list[Triple]:
    """All triples of a split in task order. ValueError for a split that is neither `train` nor `val`."""
    if split not in SPLITS:
        raise ValueError(f"number search has the splits {', '.join(SPLITS)}; it has no split {split!r}")
    return _generate()[split]


@cache
def task_specs(split: str) -> tuple[dict[str, Any], ...]:
    """The split's task specs: {goal, id, max_steps, misc: {low, high, target}}."""
    return tuple(
        {
            "goal": f"Find the hidden number. It is an integer from {low} to {high}.",
            "id": f"number_search.{split}.{index}",
            "max_steps": 1,
            "misc": {"low": low, "high": high, "target": target},
        }
        for index, (low, target, high) in enumerate(triples(split))
    )


@cache
def _generate() -> dict[str, list[Triple]]:
    rng = random.Random(_SEED)
    drawn: set[Triple] = set()
    splits: dict[str, list[Triple]] = {split: [] for split in SPLITS}
    while any(len(splits[split]) < size for split, size in _SIZES.items()):
        triple = _draw(rng)
        if triple in drawn:
            continue
        drawn.add(triple)
        split = _split_of(triple)
        if len(splits[split]) < _SIZES[split]:
            splits[split].append(triple)
    return splits


def _draw(rng: random.Random) -> Triple:
    target = rng.randint(0, _TOP)
    low = 0 if target <= 0 else rng.randint(0, max(0, target - 1))
    high = _TOP if target >= _TOP else rng.randint(min(_TOP, target + 1), _TOP)
    if low >= target:
        low = max(0, target - 1)
    if high <= target:
        high = min(_TOP, target + 1)
    return Triple(low, target, high)


def _split_of(triple: Triple) -> str:
    digest = hashlib.sha256(f"{_SEED}:{triple.low}:{triple.target}:{triple.high}".encode()).hexdigest()
    share = int(digest[:8], 16) / 0xFFFFFFFF
    return "val" if share < _SIZES["val"] / sum(_SIZES.values()) else "train"
