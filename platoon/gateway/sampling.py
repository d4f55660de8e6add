"""What the gateway asks of a sampler, and which parameters a call samples with.

A sampler is anything with one async method. The gateway never imports a training SDK.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal, Protocol

from platoon.harness.contract import CallKind

SamplingPrecedence = Literal["request", "config"]


@dataclass(frozen=True)
class SamplingParams:
    """`stop`: token ids or strings. `top_k` -1 and `top_p` 1.0 switch the filter off."""

    max_tokens: int
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = -1
    stop: tuple[int, ...] | tuple[str, ...] = ()
    seed: int | None = None


@dataclass(frozen=True)
class Sampled:
    """`tokens` hold the stop token where one was sampled; `logprobs` (natural log, untempered), one a token."""

    tokens: Sequence[int]
    logprobs: Sequence[float]
    stop_reason: Literal["stop", "length"]
    routing_id: int | None = None


class Sampler(Protocol):
    async def sample(self, prompt: Sequence[int], params: SamplingParams) -> Sampled:
        """One completion. Any exception is a gateway error for the caller; TimeoutError is a deadline."""
        ...


@dataclass(frozen=True)
class SamplingOverrides:
    """Parameters that one layer sets; None leaves a parameter to the layer below."""

    max_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    seed: int | None = None
    stop: tuple[str, ...] | None = None


class InferenceDefaults(Protocol):
    """What a run's inference parameters look like; read once, when an agent opens."""

    @property
    def temperature(self) -> float | None: ...
    @property
    def top_p(self) -> float | None: ...
    @property
    def top_k(self) -> int | None: ...
    @property
    def max_completion_tokens(self) -> int | None: ...


def overrides_of(defaults: InferenceDefaults | SamplingOverrides | None) -> SamplingOverrides:
    """An agent's layer."""
    if defaults is None:
        return SamplingOverrides()
    if isinstance(defaults, SamplingOverrides):
        return defaults
    return SamplingOverrides(
        max_tokens=defaults.max_completion_tokens,
        temperature=defaults.temperature,
        top_p=defaults.top_p,
        top_k=defaults.top_k,
    )


def resolve(
    call: SamplingOverrides,
    agent: SamplingOverrides,
    gateway: SamplingParams,
    *,
    precedence: SamplingPrecedence,
    kind: CallKind,
) -> SamplingParams:
    """The parameters of one call: its own, over the agent's, over the gateway's.

    With precedence `config` a policy call's temperature, top_p and top_k come only from the agent's layer and the
    gateway's, and the agent's max_tokens wins; `stop` and `seed` stay the call's.
    """
    fixed = precedence == "config" and kind == "policy"
    layers = (agent,) if fixed else (call, agent)
    for_length = (agent, call) if fixed else layers
    out = gateway
    for layer in reversed(layers):
        out = replace(
            out,
            temperature=out.temperature if layer.temperature is None else layer.temperature,
            top_p=out.top_p if layer.top_p is None else layer.top_p,
            top_k=out.top_k if layer.top_k is None else layer.top_k,
        )
    lengths = [layer.max_tokens for layer in for_length if layer.max_tokens is not None]
    seed = gateway.seed if call.seed is None else call.seed
    stop = gateway.stop if call.stop is None else call.stop
    return replace(out, max_tokens=lengths[0] if lengths else gateway.max_tokens, seed=seed, stop=stop)


def call_seed(sampling_seed: int | None, scope: str | None, path: tuple[int, ...], index: int) -> int | None:
    """A call's seed: 31 bits of SHA-256 over run seed, scope, place in the agent tree and call index.

    None when the run has no seed or the agent no scope.
    """
    if sampling_seed is None or scope is None:
        return None
    text = f"{sampling_seed}\n{scope}\n{'.'.join(map(str, path))}\n{index}"
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:4], "big") & 0x7FFFFFFF
