"""The model's dimensions and the layout of its parameters.

All parameters lie in one flat vector, in the order of `layout`; arrays by name are views into it. So an optimizer step,
a snapshot and a file are each about one vector.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class ModelShape:
    """`width` d, `heads` H (d divisible by H), `hidden` width of the feed-forward layers, `context` in tokens."""

    vocab: int
    width: int
    layers: int
    heads: int
    hidden: int
    context: int

    def __post_init__(self) -> None:
        if min(self.vocab, self.width, self.layers, self.heads, self.hidden, self.context) < 1:
            raise ValueError(f"model shape: every dimension is at least 1, got {asdict(self)}")
        if self.width % self.heads:
            raise ValueError(f"model shape: width {self.width} is not divisible by heads {self.heads}")

    @property
    def head_width(self) -> int:
        return self.width // self.heads

    @property
    def size(self) -> int:
        """Number of parameters."""
        return sum(math.prod(dims) for _, dims in layout(self))


def layout(shape: ModelShape) -> list[tuple[str, tuple[int, ...]]]:
    """Name and dimensions of each parameter array, in file order."""
    width, hidden = shape.width, shape.hidden
    arrays: list[tuple[str, tuple[int, ...]]] = [("embed", (shape.vocab, width)), ("smear", (width,))]
    for layer in range(shape.layers):
        arrays += [
            (f"qkv{layer}", (width, 3 * width)),
            (f"out{layer}", (width, width)),
            (f"up{layer}", (width, hidden)),
            (f"down{layer}", (hidden, width)),
        ]
    return [*arrays, ("gain", (width,))]


def views(shape: ModelShape, flat_N: Array) -> dict[str, Array]:
    """The named arrays inside `flat_N`, without copying."""
    if flat_N.shape != (shape.size,):
        raise ValueError(f"parameters: expected {shape.size} values, got an array of shape {flat_N.shape}")
    arrays, start = {}, 0
    for name, dims in layout(shape):
        stop = start + math.prod(dims)
        arrays[name] = flat_N[start:stop].reshape(dims)
        start = stop
    return arrays


def initial(shape: ModelShape, seed: int) -> npt.NDArray[np.float32]:
    """Random parameters for pretraining: scaled normal matrices, unit gain, residual outputs at zero."""
    rng = np.random.Generator(np.random.Philox(key=seed))
    flat_N = np.zeros(shape.size, np.float32)
    for name, array in views(shape, flat_N).items():
        if name == "gain":
            array[:] = 1.0
        elif name == "smear":
            array[:] = 0.3
        elif not name.startswith(("out", "down")):
            array[:] = rng.standard_normal(array.shape) * shape.width**-0.5
    return flat_N


def distance_slopes(shape: ModelShape) -> Array:
    """What each head (H,) subtracts from an attention score per token of distance."""
    slopes_H: Array = 2.0 ** (-8.0 * np.arange(1, shape.heads + 1) / shape.heads)
    return slopes_H


def alibi(shape: ModelShape, length: int, dtype: npt.DTypeLike) -> Array:
    """Bias (H, T, T) of the attention scores: -slope_h x distance; for the future, a value that softmax turns to 0."""
    distance_TT = np.arange(length)[:, None] - np.arange(length)[None, :]
    bias_HTT = np.where(distance_TT < 0, -1e9, -distance_slopes(shape)[:, None, None] * distance_TT)
    return bias_HTT.astype(dtype)
