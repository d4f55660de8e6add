"""What real training services do otherwise than the protocol says, undone in one place.

Each function names the behaviour that was seen; nothing asks a service for its name. Whatever can be told from an
answer is handled without a setting; the reduction of the loss cannot, and is `train.loss_reduction`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from platoon.credit.datum import Datum
from platoon.rollout.trajectory import Floats


def sampler_kind(path: str) -> str:
    """`tinker://M/sampler_weights/N`; some servers leave the kind out of the path they return."""
    head, _, rest = path.partition("://")
    parts = rest.split("/")
    return f"{head}://{parts[0]}/sampler_weights/{parts[1]}" if len(parts) == 2 else path


def for_sequence_mean(datums: Sequence[Datum]) -> list[Datum]:
    """Datums whose summed token loss a service computes that takes the mean over each sequence's action tokens, then
    over sequences: advantages times action tokens times sequences. Exact for losses linear in the advantage."""
    scales = [np.float64(max(datum.action_tokens, 1) * len(datums)) for datum in datums]
    return [
        replace(datum, advantages_T=(datum.advantages_T * scale).astype(np.float32))
        for datum, scale in zip(datums, scales, strict=True)
    ]


def target_logprobs(output: Mapping[str, Any], length: int) -> Floats:
    """A datum's training logprobs, float32[length]. Some servers send fewer: they are those of the last targets, and
    the missing ones (which no action can be) are NaN."""
    found = np.asarray(output["logprobs"].to_numpy(), np.float32)
    if len(found) >= length:
        return found
    return np.concatenate((np.full(length - len(found), np.nan, np.float32), found))


def metric_name(key: str) -> str:
    """`grad_norm` of `skyrl.ai/grad_norm`: some servers put their own domain before a metric."""
    domain, found, rest = key.partition("/")
    return rest if found and "." in domain else key


def adapters_full(error: BaseException) -> bool:
    """True when a server refuses one more model; it unloads those of silent sessions after some minutes."""
    text = " ".join(str(link).lower() for link in (error, error.__cause__) if link is not None)
    return "maximum number of" in text and "adapter" in text


def unique_name(name: str, used: Mapping[str, int]) -> str:
    """A checkpoint name no save of this session had: servers refuse a repeated one, also where overwriting is asked."""
    return f"{name}-{used[name] + 1}" if name in used else name
