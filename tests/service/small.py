"""A small engine with random weights and the toy tokenizer, for tests of the service around it."""

from __future__ import annotations

from pathlib import Path

import numpy as np

import platoon
from platoon.service.numpy_engine import NumpyEngine
from platoon.service.numpy_engine.shape import ModelShape, initial

NAME = "tests.service.small:engine"
SHAPE = ModelShape(vocab=300, width=16, layers=1, heads=2, hidden=32, context=64)
TOKENIZER = Path(platoon.__file__).parent / "models" / "toy"


def engine(model_name: str = NAME) -> NumpyEngine:
    return NumpyEngine(model_name, SHAPE, np.asarray(initial(SHAPE, 1), np.float32), TOKENIZER)
