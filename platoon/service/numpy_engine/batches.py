"""Examples checked and grouped into padded batches that fit the processor's cache."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt

from platoon.service.engine import Example
from platoon.service.numpy_engine.losses import REQUIRED
from platoon.service.numpy_engine.shape import Array, ModelShape

BATCH_POSITIONS = 1024  # measured: 512 to 2048 are alike, 8192 is a third slower


def check_tokens(what: str, tokens: Sequence[int] | Array, shape: ModelShape) -> npt.NDArray[np.int64]:
    """The tokens as an array. ValueError when there are none, too many, or one lies outside the vocabulary."""
    array_T = np.asarray(tokens, dtype=np.int64)
    if array_T.ndim != 1 or not array_T.size:
        raise ValueError(f"{what}: expected a flat list of at least one token, got shape {array_T.shape}")
    if array_T.size > shape.context:
        raise ValueError(f"{what}: {array_T.size} tokens do not fit the context of {shape.context}")
    if array_T.min() < 0 or array_T.max() >= shape.vocab:
        bad = int(array_T[(array_T < 0) | (array_T >= shape.vocab)][0])
        raise ValueError(f"{what}: token {bad} is outside the vocabulary of {shape.vocab}")
    return array_T


def check_examples(data: Sequence[Example], loss_fn: str, shape: ModelShape) -> None:
    """ValueError names the first example and input that the loss cannot use."""
    for number, example in enumerate(data):
        length = check_tokens(f"example {number}: model input", example.tokens_T, shape).size
        for name in REQUIRED[loss_fn]:
            if name not in example.inputs:
                raise ValueError(
                    f"example {number}: loss {loss_fn} needs the input {name!r}, got {sorted(example.inputs)}"
                )
            array_T = np.asarray(example.inputs[name])
            if array_T.shape != (length,):
                raise ValueError(f"example {number}: {name} has shape {array_T.shape}, the model input {length} tokens")
            if name == "target_tokens":
                check_tokens(f"example {number}: {name}", array_T, shape)
            elif not np.isfinite(array_T).all():
                raise ValueError(f"example {number}: {name} holds a value that is not finite")


def batches(data: Sequence[Example]) -> Iterator[tuple[list[int], npt.NDArray[np.int64]]]:
    """Indices into `data` and their tokens padded with 0 (B, T), short examples first."""
    order = sorted(range(len(data)), key=lambda index: (len(data[index].tokens_T), index))
    start = 0
    while start < len(order):
        stop = start + 1
        while stop < len(order) and (stop + 1 - start) * len(data[order[stop]].tokens_T) <= BATCH_POSITIONS:
            stop += 1
        members = order[start:stop]
        tokens_BT = np.zeros((len(members), len(data[members[-1]].tokens_T)), np.int64)
        for row, index in enumerate(members):
            tokens_BT[row, : len(data[index].tokens_T)] = data[index].tokens_T
        yield members, tokens_BT
        start = stop
