"""What the embedded service asks of a model: one narrow interface, so that engines can be exchanged.

Every call runs on the service's one compute thread. The bits of an answer depend only on the call's own arguments
and the weights it names, never on what else is in flight.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol

import numpy as np
import numpy.typing as npt

LossName = Literal["cross_entropy", "importance_sampling", "ppo", "cispo", "dro"]


@dataclass(frozen=True)
class Example:
    """One datum of a forward-backward call. `tokens_T`: model input, int32. `inputs`: arrays of length T by name
    (`target_tokens` int64; `weights` or `logprobs` and `advantages` float32)."""

    tokens_T: npt.NDArray[np.int32]
    inputs: Mapping[str, npt.NDArray[Any]]


@dataclass(frozen=True)
class ExampleOutput:
    """`logprobs_T`: untempered log-probability of each target. `loss_T`: its term of the token-summed loss. float32."""

    logprobs_T: npt.NDArray[np.float32]
    loss_T: npt.NDArray[np.float32]


@dataclass(frozen=True)
class SampledSequence:
    """`tokens` hold the stop token where one was sampled. `logprobs`: untempered, one a token."""

    tokens: list[int]
    logprobs: list[float]
    stop_reason: Literal["stop", "length"]


@dataclass(frozen=True)
class AdamParams:
    learning_rate: float
    beta1: float = 0.9
    beta2: float = 0.95
    eps: float = 1e-8
    weight_decay: float = 0.0
    grad_clip_norm: float = 0.0


class TrainState(Protocol):
    """Weights, accumulated gradients and optimizer moments of one model being trained (opaque to the service)."""


class Weights(Protocol):
    """An immutable snapshot of weights to sample from (opaque to the service)."""


class Engine(Protocol):
    """A causal language model with exact gradients."""

    model_name: str
    context_length: int
    vocab_size: int
    tokenizer_dir: Path

    def create(self, *, rank: int, seed: int) -> TrainState:
        """The base model's weights with a fresh optimizer."""
        ...

    def forward_backward(
        self,
        state: TrainState,
        data: Sequence[Example],
        loss_fn: LossName,
        config: Mapping[str, float],
        *,
        forward_only: bool = False,
    ) -> tuple[list[ExampleOutput], dict[str, float]]:
        """Add the gradient of the token-summed loss to the state (unless `forward_only`); metrics hold `loss:sum`.

        ValueError (a user's error) for a token outside the vocabulary, a too long example or missing inputs; the
        state is then unchanged.
        """
        ...

    def optim_step(self, state: TrainState, params: AdamParams) -> dict[str, float]:
        """One Adam step on the accumulated gradients, then zero. Metrics: `grad_norm` where clipping is on."""
        ...

    def weights(self, state: TrainState | None) -> Weights:
        """A snapshot of the state's weights; None: the base model's."""
        ...

    def sample(
        self,
        weights: Weights,
        prompt: Sequence[int],
        *,
        num_samples: int,
        max_tokens: int,
        temperature: float = 1.0,
        top_p: float = 1.0,
        top_k: int = -1,
        stop: Sequence[int] | Sequence[str] = (),
        seed: int | None = None,
    ) -> list[SampledSequence]:
        """Sample continuations. Sequence i of a seeded call depends on (seed, i) only. Temperature 0 is greedy."""
        ...

    def prompt_logprobs(self, weights: Weights, prompt: Sequence[int]) -> list[float | None]:
        """One value a prompt token, the first None."""
        ...

    def save(self, state: TrainState, path: Path) -> None:
        """Write weights and optimizer moments into the directory `path` (which exists and is empty)."""
        ...

    def save_weights(self, weights: Weights, path: Path) -> None: ...

    def load(self, path: Path, *, optimizer: bool) -> TrainState:
        """A state from `save`d files; without `optimizer`, fresh moments. ValueError on a wrong or broken file."""
        ...

    def load_weights(self, path: Path) -> Weights:
        """From a directory written by `save` or `save_weights`."""
        ...
