"""A pretrained model as it ships: `engine.json` (its shape), `weights.npy` (float16) and the tokenizer's files."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import numpy as np

from platoon.service.numpy_engine.engine import NumpyEngine
from platoon.service.numpy_engine.shape import ModelShape
from platoon.service.numpy_engine.state import Flat


def write_model(directory: Path, shape: ModelShape, flat_N: Flat) -> None:
    """Write shape and weights; the weights are rounded to float16."""
    (directory / "engine.json").write_text(json.dumps(asdict(shape)) + "\n")
    np.save(directory / "weights.npy", flat_N.astype(np.float16), allow_pickle=False)


def read_model(directory: Path, model_name: str) -> NumpyEngine:
    """ValueError names the file that is missing or does not fit the shape."""
    try:
        shape = ModelShape(**json.loads((directory / "engine.json").read_text()))
        half_N = np.load(directory / "weights.npy", allow_pickle=False)
    except (OSError, TypeError, ValueError, EOFError) as error:
        raise ValueError(
            f"model {model_name!r}: {directory} holds no readable weights of the numpy engine: {error}"
        ) from error
    if half_N.dtype != np.float16 or half_N.shape != (shape.size,):
        raise ValueError(
            f"{directory / 'weights.npy'}: expected float16 ({shape.size},), got {half_N.dtype} {half_N.shape}"
        )
    return NumpyEngine(model_name, shape, half_N.astype(np.float32), directory)
