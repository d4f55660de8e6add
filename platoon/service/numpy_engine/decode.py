"""Sampling one sequence at a time with a key-value cache.

Promise: a sequence's bits depend on weights, prompt, settings and (seed, index) only. Buffers are allocated once and
reused, so a Decoder serves one thread. Log-probabilities are those of the untempered distribution.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from platoon.service.engine import SampledSequence
from platoon.service.numpy_engine.network import NORM_EPS, forward
from platoon.service.numpy_engine.shape import Array, ModelShape, alibi, distance_slopes
from platoon.service.numpy_engine.state import NumpyWeights

Floats = npt.NDArray[np.float32]
Tables = tuple[list[tuple[Array, Array, Array, Array]], Array, Array]


@dataclass(frozen=True)
class Choice:
    """How the next token is drawn. `temperature` 0 takes the likeliest; `top_k` -1 and `top_p` 1 cut nothing."""

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = -1

    def __post_init__(self) -> None:
        if not (math.isfinite(self.temperature) and self.temperature >= 0):
            raise ValueError(f"temperature: expected a finite number >= 0, got {self.temperature}")
        if not 0 < self.top_p <= 1:
            raise ValueError(f"top_p: expected a number in (0, 1], got {self.top_p}")
        if self.top_k == 0 or self.top_k < -1:
            raise ValueError(f"top_k: expected -1 (off) or at least 1, got {self.top_k}")

    def draw(self, logits_V: Floats, weights_V: Floats, uniform: float) -> int:
        """A token. `weights_V`: exp(logits - max), proportional to the untempered distribution; may be overwritten."""
        if self.temperature == 0:
            return int(logits_V.argmax())
        if self.temperature != 1:
            weights_V = np.exp((logits_V - logits_V.max()) / np.float32(self.temperature))
        if 0 < self.top_k < len(weights_V):
            weights_V = _keep(weights_V, np.argsort(-weights_V, kind="stable")[: self.top_k])
        if self.top_p < 1:
            order = np.argsort(-weights_V, kind="stable")
            reached = np.cumsum(weights_V[order], dtype=np.float64)
            weights_V = _keep(weights_V, order[: int(np.searchsorted(reached, self.top_p * reached[-1])) + 1])
        below_V = np.add.accumulate(weights_V)
        total = below_V[-1]
        token = int(below_V.searchsorted(np.float32(uniform) * total, side="right"))
        # Rounding may put the point on the total itself: then the last token with any weight is meant.
        return token if token < len(below_V) else int(below_V.searchsorted(total, side="left"))


def _keep(weights_V: Floats, kept: Array) -> Floats:
    cut_V = np.zeros_like(weights_V)
    cut_V[kept] = weights_V[kept]
    return cut_V


class Decoder:
    """Reusable buffers for one model shape."""

    def __init__(self, shape: ModelShape) -> None:
        self.shape = shape
        context, heads, width = shape.context, shape.heads, shape.head_width
        self._bias_HTT = alibi(shape, min(context, 64), np.float32)
        distance_T = np.arange(context - 1, -1, -1)
        self._recent_H1T = (-distance_slopes(shape)[:, None, None] * distance_T).astype(np.float32)
        self._keys = [np.zeros((heads, width, context), np.float32) for _ in range(shape.layers)]
        self._values = [np.zeros((heads, context, width), np.float32) for _ in range(shape.layers)]
        self._tables: tuple[NumpyWeights, Tables] | None = None

    def bias(self, length: int) -> Floats:
        """The attention bias for sequences of up to `length` tokens; grows by doubling."""
        if length > self._bias_HTT.shape[1]:
            size = min(self.shape.context, max(length, 2 * self._bias_HTT.shape[1]))
            self._bias_HTT = alibi(self.shape, size, np.float32)
        return self._bias_HTT

    def prefill(self, weights: NumpyWeights, prompt_T: Array) -> Floats:
        """Fill the caches with the prompt; logits after its last token."""
        length = len(prompt_T)
        trace = forward(self.shape, weights.params, prompt_T[None, :], self.bias(length))
        for layer, seen in enumerate(trace.layers):
            self._keys[layer][:, :, :length] = seen.k[0].transpose(0, 2, 1)
            self._values[layer][:, :length] = seen.v[0]
        _, _, unembed_dV = self._prepared(weights)
        logits_V: Floats = trace.normed[-1] @ unembed_dV
        return logits_V

    def sequence(
        self,
        weights: NumpyWeights,
        prompt_T: Array,
        logits_V: Floats,
        choice: Choice,
        uniforms: Sequence[float],
        stops: Callable[[list[int]], bool],
    ) -> SampledSequence:
        """Continue a prefilled prompt: one token per uniform number at most, until `stops(tokens)`."""
        tokens: list[int] = []
        logprobs: list[float] = []
        position, previous = len(prompt_T), int(prompt_T[-1])
        for index, uniform in enumerate(uniforms):
            if index:
                logits_V = self._advance(weights, previous, tokens[-1], position)
                previous = tokens[-1]
                position += 1
            top = logits_V.max()
            weights_V = np.exp(logits_V - top)
            log_total = math.log(np.add.reduce(weights_V))
            if not math.isfinite(log_total):
                raise ValueError("sample: the weights give no finite distribution; training has diverged")
            token = choice.draw(logits_V, weights_V, uniform)
            tokens.append(token)
            logprobs.append(min(0.0, float(logits_V[token] - top) - log_total))
            if stops(tokens):
                return SampledSequence(tokens, logprobs, "stop")
        return SampledSequence(tokens, logprobs, "length")

    def _prepared(self, weights: NumpyWeights) -> Tables:
        """Per layer (qkv with the score scale folded in, out, up, down), smeared embedding, unembedding (d, V)."""
        if self._tables is None or self._tables[0] is not weights:
            params = weights.params
            layers: list[tuple[Array, Array, Array, Array]] = []
            for layer in range(self.shape.layers):
                qkv = params[f"qkv{layer}"].copy()
                qkv[:, : self.shape.width] *= np.float32(self.shape.head_width**-0.5)
                layers.append((qkv, params[f"out{layer}"], params[f"up{layer}"], params[f"down{layer}"]))
            unembed_dV = np.ascontiguousarray((params["embed"] * params["gain"]).T)
            self._tables = (weights, (layers, params["smear"] * params["embed"], unembed_dV))
        return self._tables[1]

    def _advance(self, weights: NumpyWeights, previous: int, token: int, position: int) -> Floats:
        """Feed `token` at `position`; logits of what follows it."""
        layers, smeared_Vd, unembed_dV = self._prepared(weights)
        width, heads, stop = self.shape.width, self.shape.heads, position + 1
        recent_H1T = self._recent_H1T[:, :, self.shape.context - stop :]
        x = weights.params["embed"][token] + smeared_Vd[previous]
        for layer, (qkv, out, up, down) in enumerate(layers):
            keys, values = self._keys[layer], self._values[layer]
            q, k, v = (_unit(x, width) @ qkv).reshape(3, heads, -1)
            keys[:, :, position] = k
            values[:, position] = v
            scores = np.matmul(q[:, None, :], keys[:, :, :stop])
            scores += recent_H1T
            scores -= np.maximum.reduce(scores, axis=2, keepdims=True)
            np.exp(scores, out=scores)
            mixed = np.matmul(scores, values[:, :stop])
            mixed /= np.add.reduce(scores, axis=2, keepdims=True)
            x = x + mixed.reshape(width) @ out
            relu = np.maximum(_unit(x, width) @ up, 0)
            relu *= relu
            x += relu @ down
        logits_V: Floats = _unit(x, width) @ unembed_dV
        return logits_V


def _unit(x_d: Floats, width: int) -> Floats:
    result: Floats = x_d * np.float32(1 / math.sqrt(float(x_d.dot(x_d)) / width + NORM_EPS))
    return result
