"""The numpy engine: a small causal transformer behind the service's engine interface.

Promise: deterministic bit for bit on one machine (with BLAS on one thread), exact gradients, float32 throughout. Every
model it creates starts from the shipped weights; `rank` and `seed` change nothing, all weights are trained.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, cast

import numpy as np

from platoon.service.engine import (
    AdamParams,
    Example,
    ExampleOutput,
    LossName,
    SampledSequence,
    TrainState,
    Weights,
)
from platoon.service.numpy_engine import state as files
from platoon.service.numpy_engine.batches import batches, check_examples, check_tokens
from platoon.service.numpy_engine.decode import Choice, Decoder
from platoon.service.numpy_engine.losses import loss_terms, settings
from platoon.service.numpy_engine.network import backward, forward, log_probabilities, output_gradient
from platoon.service.numpy_engine.shape import Array, ModelShape, views
from platoon.service.numpy_engine.state import Flat, NumpyState, NumpyWeights

if TYPE_CHECKING:
    from tokenizers import Tokenizer


class NumpyEngine:
    """See `platoon.service.engine.Engine`. `base_N`: the pretrained parameters as one flat float32 vector."""

    def __init__(self, model_name: str, shape: ModelShape, base_N: Flat, tokenizer_dir: Path) -> None:
        self.model_name = model_name
        self.context_length = shape.context
        self.vocab_size = shape.vocab
        self.tokenizer_dir = tokenizer_dir
        self.shape = shape
        self._base = NumpyWeights.of(shape, np.asarray(base_N, np.float32))
        self._decoder = Decoder(shape)
        self._tokenizer: Tokenizer | None = None

    def create(self, *, rank: int, seed: int) -> TrainState:
        return NumpyState(self.shape, self._base.flat_N.copy())

    def forward_backward(
        self,
        state: TrainState,
        data: Sequence[Example],
        loss_fn: LossName,
        config: Mapping[str, float],
        *,
        forward_only: bool = False,
    ) -> tuple[list[ExampleOutput], dict[str, float]]:
        model = _state(state)
        values = settings(loss_fn, config)
        check_examples(data, loss_fn, self.shape)
        outputs: dict[int, ExampleOutput] = {}
        grads_N = np.zeros_like(model.flat_N)
        into = None if forward_only else views(self.shape, grads_N)
        for members, tokens_BT in batches(data):
            outputs.update(self._batch(model, data, members, tokens_BT, loss_fn, values, into))
        if not forward_only:
            model.grads_N += grads_N
        results = [outputs[index] for index in range(len(data))]
        return results, {"loss:sum": float(sum(float(result.loss_T.sum(dtype=np.float64)) for result in results))}

    def _batch(
        self,
        model: NumpyState,
        data: Sequence[Example],
        members: list[int],
        tokens_BT: Array,
        loss_fn: LossName,
        values: Mapping[str, float],
        grads: Mapping[str, Array] | None,
    ) -> dict[int, ExampleOutput]:
        """Outputs of one padded batch by example; adds its gradient to `grads`."""
        lengths = [len(data[index].tokens_T) for index in members]
        rows_N = np.concatenate([row * tokens_BT.shape[1] + np.arange(length) for row, length in enumerate(lengths)])
        inputs = {
            name: np.concatenate([np.asarray(data[index].inputs[name]) for index in members])
            for name in ("target_tokens", "weights", "logprobs", "advantages")
            if all(name in data[index].inputs for index in members)
        }
        trace = forward(self.shape, model.params, tokens_BT, self._decoder.bias(tokens_BT.shape[1]))
        normed_Nd = trace.normed[rows_N]
        logp_N, probs_NV = log_probabilities(model.params, normed_Nd, inputs["target_tokens"])
        loss_N, slope_N = loss_terms(loss_fn, inputs, logp_N, values)
        if grads is not None:
            acting_N = np.flatnonzero(slope_N)
            dnormed = np.zeros_like(trace.normed)
            dnormed[rows_N[acting_N]] = output_gradient(
                model.params,
                grads,
                normed_Nd[acting_N],
                probs_NV[acting_N],
                inputs["target_tokens"][acting_N],
                slope_N[acting_N],
            )
            backward(self.shape, model.params, grads, trace, dnormed)
        cuts = np.cumsum(lengths)[:-1]
        parts = zip(members, np.split(logp_N, cuts), np.split(loss_N, cuts), strict=True)
        return {index: ExampleOutput(logp_T.copy(), loss_T.copy()) for index, logp_T, loss_T in parts}

    def optim_step(self, state: TrainState, params: AdamParams) -> dict[str, float]:
        return _state(state).adam(params)

    def weights(self, state: TrainState | None) -> Weights:
        return self._base if state is None else NumpyWeights.of(self.shape, _state(state).flat_N)

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
        """As in the interface. ValueError when prompt and `max_tokens` together do not fit the context."""
        model = _weights(weights)
        prompt_T = check_tokens("prompt", prompt, self.shape)
        choice = Choice(temperature, top_p, top_k)
        if num_samples < 1 or max_tokens < 1:
            raise ValueError(f"num_samples and max_tokens: expected at least 1, got {num_samples} and {max_tokens}")
        if len(prompt_T) + max_tokens > self.context_length:
            raise ValueError(
                f"prompt of {len(prompt_T)} tokens and max_tokens {max_tokens} exceed the context of "
                f"{self.context_length}"
            )
        stops = self._stops(stop)
        scope = secrets.randbits(63) if seed is None else seed
        logits_V = self._decoder.prefill(model, prompt_T)
        sequences = []
        for index in range(num_samples):
            draws = np.random.Generator(np.random.Philox(key=(scope % 2**64) + (index << 64))).random(max_tokens)
            sequences.append(self._decoder.sequence(model, prompt_T, logits_V, choice, draws.tolist(), stops))
        return sequences

    def prompt_logprobs(self, weights: Weights, prompt: Sequence[int]) -> list[float | None]:
        model = _weights(weights)
        prompt_T = check_tokens("prompt", prompt, self.shape)
        trace = forward(self.shape, model.params, prompt_T[None, :], self._decoder.bias(len(prompt_T)))
        logp_T, _ = log_probabilities(model.params, trace.normed[:-1], prompt_T[1:])
        return [None, *logp_T.tolist()]

    def _stops(self, stop: Sequence[int] | Sequence[str]) -> Callable[[list[int]], bool]:
        """Whether a sequence ends with its newest token: a stop token, or a stop text completed in the decoded text."""
        texts = [item for item in stop if isinstance(item, str)]
        if not texts:
            ids = frozenset(cast("Sequence[int]", stop))
            return lambda tokens: tokens[-1] in ids
        if len(texts) != len(stop) or not all(texts):
            raise ValueError(f"stop: expected token ids or non-empty texts, got {list(stop)!r}")
        tokenizer = self._load_tokenizer()
        return lambda tokens: any(text in tokenizer.decode(tokens, skip_special_tokens=False) for text in texts)

    def _load_tokenizer(self) -> Tokenizer:
        if self._tokenizer is None:
            from tokenizers import Tokenizer

            self._tokenizer = Tokenizer.from_file(str(self.tokenizer_dir / "tokenizer.json"))
        return self._tokenizer

    def save(self, state: TrainState, path: Path) -> None:
        model = _state(state)
        files.save(path, self.model_name, self.shape, model.flat_N, model)

    def save_weights(self, weights: Weights, path: Path) -> None:
        files.save(path, self.model_name, self.shape, _weights(weights).flat_N)

    def load(self, path: Path, *, optimizer: bool) -> TrainState:
        return files.load(path, self.model_name, self.shape, optimizer=optimizer)

    def load_weights(self, path: Path) -> Weights:
        return NumpyWeights.of(self.shape, files.load(path, self.model_name, self.shape, optimizer=False).flat_N)


def _state(state: TrainState) -> NumpyState:
    if not isinstance(state, NumpyState):
        raise TypeError(f"expected a state of the numpy engine, got {type(state).__name__}")
    return state


def _weights(weights: Weights) -> NumpyWeights:
    if not isinstance(weights, NumpyWeights):
        raise TypeError(f"expected weights of the numpy engine, got {type(weights).__name__}")
    return weights
