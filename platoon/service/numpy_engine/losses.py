"""The five losses of the service, summed over tokens, with their derivatives.

Per token, r = exp(logp - logprobs) is the ratio of the trained to the sampling policy. The clip thresholds bound r
itself. Formulas and defaults are those of Tinker's public documentation.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, get_args

import numpy as np
import numpy.typing as npt

from platoon.service.engine import LossName

Array = npt.NDArray[Any]

DEFAULTS: Mapping[str, float] = {"clip_low_threshold": 0.8, "clip_high_threshold": 1.2, "beta": 0.05}
REQUIRED: Mapping[str, tuple[str, ...]] = {
    name: ("target_tokens", "weights") if name == "cross_entropy" else ("target_tokens", "logprobs", "advantages")
    for name in get_args(LossName)
}


def settings(loss_fn: str, config: Mapping[str, float]) -> dict[str, float]:
    """The loss's numbers with defaults filled in. ValueError for an unknown loss or key, or a value that cannot be."""
    if loss_fn not in REQUIRED:
        raise ValueError(f"loss_fn {loss_fn!r} is unknown; known: {', '.join(REQUIRED)}")
    unknown = sorted(set(config) - set(DEFAULTS))
    if unknown:
        raise ValueError(f"loss_fn_config: unknown key {unknown[0]!r}; known: {', '.join(DEFAULTS)}")
    values = {**DEFAULTS, **config}
    for key, value in values.items():
        if not math.isfinite(value) or value < 0:
            raise ValueError(f"loss_fn_config.{key}: expected a finite number >= 0, got {value}")
    if values["clip_low_threshold"] > values["clip_high_threshold"]:
        raise ValueError(
            f"loss_fn_config: clip_low_threshold {values['clip_low_threshold']} is above "
            f"clip_high_threshold {values['clip_high_threshold']}"
        )
    return values


def loss_terms(
    loss_fn: LossName, inputs: Mapping[str, Array], logp_T: Array, values: Mapping[str, float]
) -> tuple[Array, Array]:
    """Each token's term of the loss and its derivative by logp, both (T,) in the precision of `logp_T`."""
    if loss_fn == "cross_entropy":
        weights_T = inputs["weights"].astype(logp_T.dtype)
        return -weights_T * logp_T, -weights_T
    advantages_T = inputs["advantages"].astype(logp_T.dtype)
    delta_T = logp_T - inputs["logprobs"].astype(logp_T.dtype)
    if loss_fn == "dro":
        return _dro(logp_T, delta_T, advantages_T, inputs["logprobs"], values["beta"])
    # Positions without an advantage may carry any logprob: keep their ratio out, it could overflow.
    ratio_T = np.exp(np.where(advantages_T == 0, 0, delta_T))
    clipped_T = np.clip(ratio_T, values["clip_low_threshold"], values["clip_high_threshold"])
    plain_T = ratio_T * advantages_T
    if loss_fn == "importance_sampling":
        return -plain_T, -plain_T
    bounded_T = clipped_T * advantages_T
    if loss_fn == "cispo":
        return -bounded_T * logp_T, -bounded_T
    # ppo: where the clipped product is the smaller one, it is constant in logp.
    return -np.minimum(plain_T, bounded_T), np.where(plain_T <= bounded_T, -plain_T, 0)


def _dro(logp_T: Array, delta_T: Array, advantages_T: Array, logprobs_T: Array, beta: float) -> tuple[Array, Array]:
    """-(logp A - beta/2 (logp - logprobs)^2).

    A position with neither advantage nor logprob was not sampled: no penalty there.
    """
    sampled_T = (advantages_T != 0) | (logprobs_T != 0)
    delta_T = np.where(sampled_T, delta_T, 0)
    penalty = logp_T.dtype.type(beta)
    return -logp_T * advantages_T + penalty / 2 * np.square(delta_T), -advantages_T + penalty * delta_T
