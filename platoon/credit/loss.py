"""What a microbatch sends: normalisation of advantages, the zero-advantage filter, and metrics of the update.

The service sums its loss over tokens, and over the microbatches of an update. Dividing each microbatch's advantages by
its action tokens makes an update of m microbatches a sum of m per-token means.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from platoon.credit.datum import Datum
from platoon.rollout.trajectory import Floats

_ZERO_LOSSES = ("cispo", "ppo", "importance_sampling")
_CLIPPED_LOSSES = ("cispo", "ppo")
_CLIP_KEYS = frozenset({"clip_low_threshold", "clip_high_threshold"})


@dataclass(frozen=True)
class ZeroFilter:
    """`kept` datums, and the action tokens that stay the loss's denominator: those of all datums before the filter."""

    kept: list[Datum]
    normalization_tokens: float
    stats: Mapping[str, float]


def normalization_tokens(datums: Sequence[Datum]) -> float:
    """N of a microbatch: the sum of its masks."""
    return float(sum(float(datum.mask_T.sum(dtype=np.float64)) for datum in datums))


def short_factor(admitted: int, places: int) -> float:
    """Factor of a microbatch's tokens that a capped step closed early, with `admitted` of its `places` groups.

    places / max(1, admitted): it counts as if its missing groups had the others' tokens. Never below 1.
    """
    return places / max(1, admitted) if admitted < places else 1.0


def scale_microbatch(datums: Sequence[Datum], tokens: float | None = None) -> list[Datum]:
    """Datums with advantages times 1 / (N + 1e-8). N is `tokens`, by default the datums' own action tokens."""
    scale = 1.0 / ((normalization_tokens(datums) if tokens is None else tokens) + 1e-8)
    return [replace(d, advantages_T=(d.advantages_T * np.float64(scale)).astype(np.float32)) for d in datums]


def zero_at_zero_advantages(loss_fn: str, loss_fn_config: Mapping[str, object] | None) -> bool:
    """Whether a token with advantage 0 adds exactly nothing to the loss, so that it need not be sent."""
    return loss_fn in _ZERO_LOSSES and set(loss_fn_config or ()) <= _CLIP_KEYS


def filter_zero_advantages(datums: Sequence[Datum]) -> ZeroFilter:
    """Drop datums none of whose action targets has a nonzero advantage. Compared exactly: NaN and tiny values stay."""
    kept = [datum for datum in datums if datum.has_signal]
    stats: dict[str, float] = {}
    for stage, found in (("eligible", list(datums)), ("retained", kept)):
        stats[f"{stage}_datums"] = len(found)
        stats[f"{stage}_attention_tokens"] = sum(datum.attention_tokens for datum in found)
        stats[f"{stage}_loss_tokens"] = sum(datum.action_tokens for datum in found)
    for name in ("datums", "attention_tokens", "loss_tokens"):
        stats[f"filtered_{name}"] = stats[f"eligible_{name}"] - stats[f"retained_{name}"]
    named = {f"zero_advantage_filter/{key}": float(value) for key, value in stats.items()}
    return ZeroFilter(kept, normalization_tokens(datums), named)


def all_advantages_zero(datums: Sequence[Datum]) -> bool:
    """True when every advantage of every datum is exactly 0: the objective is zero."""
    return not any(bool(np.any(datum.advantages_T != 0)) for datum in datums)


def optimizer_metrics(
    datums: Sequence[Datum],
    train_logprobs: Sequence[Floats],
    loss_fn: str,
    loss_fn_config: Mapping[str, float] | None,
) -> dict[str, float]:
    """`optim/*` of one microbatch over its action targets, in float64; {} when it has none.

    `train_logprobs` holds the service's logprobs of each datum's targets, float32[T]. With delta the sampling minus the
    training logprob: KL estimates mean(delta) and mean(delta^2) / 2, importance weights exp(-delta). ValueError when a
    length differs.
    """
    pairs = list(zip(datums, train_logprobs, strict=True))
    for datum, trained in pairs:
        if len(trained) != len(datum.targets_T):
            raise ValueError(f"the service sent {len(trained)} logprobs for {len(datum.targets_T)} targets")
    actions = [datum.mask_T > 0 for datum in datums]
    if not any(bool(action.any()) for action in actions):
        return {}
    sampled = np.concatenate([d.logprobs_T[a] for d, a in zip(datums, actions, strict=True)]).astype(np.float64)
    trained_A = np.concatenate([np.asarray(t)[a] for (_, t), a in zip(pairs, actions, strict=True)]).astype(np.float64)
    delta = sampled - trained_A
    weights = np.exp(-delta)
    found = {
        "optim/kl_sample_train_v1": delta.mean(),
        "optim/kl_sample_train_v2": 0.5 * np.square(delta).mean(),
        "optim/entropy": -sampled.mean(),
        "optim/importance_weight_mean": weights.mean(),
        "optim/importance_weight_std": weights.std(ddof=1) if len(weights) > 1 else math.nan,
        "optim/importance_weight_min": weights.min(),
        "optim/importance_weight_max": weights.max(),
    }
    if loss_fn in _CLIPPED_LOSSES:
        config = loss_fn_config or {}
        low = weights < config.get("clip_low_threshold", 0.0)
        high = weights > config.get("clip_high_threshold", 5.0)
        found |= {
            "optim/clip_frac_low": low.mean(),
            "optim/clip_frac_high": high.mean(),
            "optim/clip_frac_total": (low | high).mean(),
        }
    return {key: float(value) for key, value in found.items()}


def mean_over_microbatches(found: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Mean of each metric of the first microbatch over the microbatches that have it; {} for none."""
    if not found:
        return {}
    series = {key: [metrics[key] for metrics in found if key in metrics] for key in found[0]}
    return {key: sum(values) / len(values) for key, values in series.items()}
