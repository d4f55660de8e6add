"""Reading the fields of a JSON request: the right value, or an error that names the field."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from platoon.service.engine import AdamParams
from platoon.service.wire import prompt_tokens

T = TypeVar("T")
UNSUPPORTED_SAMPLING = (
    "topk_prompt_logprobs",
    "topk_sample_logprobs",
    "target_prompt_logprobs",
    "prompt_alt_tokens_k",
    "prompt_logprobs_last_n",
)


def required(body: Mapping[str, Any], name: str, kind: type[T]) -> T:
    """The field `name`. ValueError when it is missing or of another type."""
    value = body.get(name)
    if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
        raise ValueError(f"the request needs {name!r} as {kind.__name__}, it has {value!r}")
    return value


def optional(body: Mapping[str, Any], name: str, kind: type[T]) -> T | None:
    """The field `name`, None where it is absent or null."""
    return None if body.get(name) is None else required(body, name, kind)


def number(body: Mapping[str, Any], name: str, default: float) -> float:
    value = body.get(name, default)
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise ValueError(f"{name!r} has to be a finite number, it is {value!r}")
    return float(value)


def adam_params(body: Mapping[str, Any]) -> AdamParams:
    """The Adam settings of an optimizer step. ValueError for another optimizer or a setting out of its range."""
    given = body.get("adam_params")
    if not isinstance(given, dict):
        raise ValueError("the request holds no adam_params; Adam is the only optimizer of this service")
    base = AdamParams(learning_rate=1e-4, eps=1e-12)
    params = AdamParams(**{name: number(given, name, getattr(base, name)) for name in AdamParams.__dataclass_fields__})
    if not (0 <= params.beta1 < 1 and 0 <= params.beta2 < 1 and params.eps > 0):
        raise ValueError(f"betas have to be in [0, 1) and eps above 0: {params}")
    if params.learning_rate < 0 or params.grad_clip_norm < 0:
        raise ValueError(f"learning_rate and grad_clip_norm cannot be negative: {params}")
    return params


@dataclass(frozen=True)
class SampleRequest:
    """What to sample. `max_tokens` None: as many as the context holds."""

    prompt: list[int]
    num_samples: int
    max_tokens: int | None
    temperature: float
    top_p: float
    top_k: int
    stop: list[int] | list[str]
    seed: int | None
    prompt_logprobs: bool


def sample_request(body: Mapping[str, Any]) -> SampleRequest:
    """ValueError for a field out of its range and for options this service does not have."""
    for name in UNSUPPORTED_SAMPLING:
        if body.get(name):
            raise ValueError(f"{name!r} is not supported by this service")
    params = required(body, "sampling_params", dict)
    stop = params.get("stop") or []
    request = SampleRequest(
        prompt=prompt_tokens(required(body, "prompt", dict)),
        num_samples=int(number(body, "num_samples", 1)),
        max_tokens=optional(params, "max_tokens", int),
        temperature=number(params, "temperature", 1.0),
        top_p=number(params, "top_p", 1.0),
        top_k=int(number(params, "top_k", -1)),
        stop=[stop] if isinstance(stop, str) else list(stop),
        seed=optional(params, "seed", int),
        prompt_logprobs=bool(body.get("prompt_logprobs")),
    )
    if not 1 <= request.num_samples <= 1024:
        raise ValueError(f"num_samples is {request.num_samples}, not 1 to 1024")
    if request.max_tokens is not None and request.max_tokens < 1:
        raise ValueError(f"max_tokens is {request.max_tokens}, not 1 or more")
    if request.temperature < 0 or not 0 < request.top_p <= 1:
        raise ValueError(
            f"temperature is {request.temperature} (0 or more), top_p {request.top_p} (above 0, at most 1)"
        )
    if not request.prompt:
        raise ValueError("the prompt is empty")
    return request
