"""The error filter: a failed action is never reinforced, but may be discouraged."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import replace

import numpy as np

from platoon.credit.datum import Datum

_COUNTS = (
    "detected_action_tokens",
    "suppressed_positive_action_tokens",
    "retained_nonpositive_action_tokens",
    "emptied_datums",
)


def filter_error_tokens(datums: Iterable[Datum], counts: Counter[str]) -> list[Datum]:
    """Drop error targets with a positive advantage from the loss, and datums left without action targets.

    Reads and removes the error channel; a datum without one is dropped only when its mask is all zero. `traj_start`
    stays as it was. Adds to `counts`: `channel` datums, and the names of `error_stats`.
    """
    kept: list[Datum] = []
    for datum in datums:
        if datum.errors_T is None:
            if datum.action_tokens:
                kept.append(datum)
            continue
        counts["channel"] += 1
        errors = datum.errors_T & (datum.mask_T > 0)
        suppressed = errors & (datum.advantages_T > 0)
        detected, dropped = int(np.count_nonzero(errors)), int(np.count_nonzero(suppressed))
        counts["detected_action_tokens"] += detected
        counts["suppressed_positive_action_tokens"] += dropped
        counts["retained_nonpositive_action_tokens"] += detected - dropped
        if dropped:
            datum = replace(
                datum,
                mask_T=np.where(suppressed, np.float32(0), datum.mask_T),
                advantages_T=np.where(suppressed, np.float32(0), datum.advantages_T),
            )
        if datum.action_tokens:
            kept.append(replace(datum, errors_T=None))
        else:
            counts["emptied_datums"] += 1
    return kept


def error_stats(counts: Counter[str]) -> dict[str, float]:
    """`error_filter/*` of a group; empty when no datum had an error channel."""
    if not counts["channel"]:
        return {}
    return {f"error_filter/{name}": float(counts[name]) for name in _COUNTS}
