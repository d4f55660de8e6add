"""A model small enough to compare with finite differences, with random weights."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from platoon.service.engine import Example
from platoon.service.numpy_engine import NumpyEngine
from platoon.service.numpy_engine.shape import Array, ModelShape, initial
from platoon.service.numpy_engine.state import Flat

SMALL = ModelShape(vocab=23, width=8, layers=2, heads=2, hidden=12, context=40)


def random_weights(seed: int) -> Flat:
    """Unlike `initial`, no matrix is zero: every gradient path is open."""
    noise_N = np.random.default_rng(seed).standard_normal(SMALL.size) * 0.2
    return np.asarray(initial(SMALL, seed) + noise_N, np.float32)


def random_examples(seed: int, lengths: list[int]) -> list[Example]:
    """Examples usable by every loss; advantages of both signs, some zero, sampling logprobs near and far."""
    rng = np.random.default_rng(seed)
    examples = []
    for length in lengths:
        tokens = rng.integers(0, SMALL.vocab, length + 1)
        advantages_T = np.where(rng.random(length) < 0.3, 0, rng.standard_normal(length)).astype(np.float32)
        inputs: dict[str, Array] = {
            "target_tokens": tokens[1:],
            "weights": rng.random(length).astype(np.float32),
            "logprobs": np.where(advantages_T == 0, 0, rng.uniform(-6, -0.5, length)).astype(np.float32),
            "advantages": advantages_T,
        }
        examples.append(Example(tokens[:-1].astype(np.int32), inputs))
    return examples


@pytest.fixture
def engine() -> NumpyEngine:
    return NumpyEngine("small", SMALL, random_weights(3), Path("no-tokenizer"))
