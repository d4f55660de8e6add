"""The learning rate of each update: a pure function of its place in the run's plan, so that a resume is exact."""

from __future__ import annotations

import math

from platoon.config import AdamParams


def learning_rate(optimizer: AdamParams, update: int, planned: int) -> float:
    """The rate of planned update `update` (the first is 0) of `planned`.

    Warm-up is linear: (update + 1) / warmup_steps. Then the rate goes from the full one towards `min_ratio` of it,
    which it would reach at `planned`: linearly, or along half a cosine. A run that is extended follows its new plan.
    """
    full = optimizer.learning_rate
    if update < optimizer.warmup_steps:
        return full * (update + 1) / optimizer.warmup_steps
    if optimizer.schedule == "constant":
        return full
    done = min((update - optimizer.warmup_steps) / max(planned - optimizer.warmup_steps, 1), 1.0)
    left = 1.0 - done if optimizer.schedule == "linear" else 0.5 * (1.0 + math.cos(math.pi * done))
    return full * (optimizer.min_ratio + (1.0 - optimizer.min_ratio) * left)
