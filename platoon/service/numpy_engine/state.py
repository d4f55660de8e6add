"""Weights, gradients and Adam moments of one model, and the files they are kept in.

A directory holds `state.json` (format, model, shape, step, digests), `weights.npy` and, for a full state, `moments.npy`
(2, N). Values are float32 and come back bit for bit. Accumulated gradients are never saved.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path

import numpy as np
import numpy.typing as npt

from platoon.service.engine import AdamParams
from platoon.service.numpy_engine.shape import Array, ModelShape, views

Flat = npt.NDArray[np.float32]
FORMAT = 1


@dataclass(frozen=True, eq=False)
class NumpyWeights:
    """An immutable snapshot. `flat_N` is read-only."""

    shape: ModelShape
    flat_N: Flat

    @classmethod
    def of(cls, shape: ModelShape, flat_N: Flat) -> NumpyWeights:
        copy_N = flat_N.copy()
        copy_N.flags.writeable = False
        return cls(shape, copy_N)

    @cached_property
    def params(self) -> dict[str, Array]:
        return views(self.shape, self.flat_N)


@dataclass(eq=False)
class NumpyState:
    """One model being trained. `step` counts the optimizer steps that the moments have seen."""

    shape: ModelShape
    flat_N: Flat
    grads_N: Flat = field(init=False)
    moments_2N: npt.NDArray[np.float32] = field(init=False)
    step: int = 0

    def __post_init__(self) -> None:
        self.params = views(self.shape, self.flat_N)
        self.grads_N = np.zeros_like(self.flat_N)
        self.moments_2N = np.zeros((2, self.flat_N.size), np.float32)

    def adam(self, settings: AdamParams) -> dict[str, float]:
        """One step of Adam with bias correction and decoupled weight decay; the gradients are zero afterwards.

        ValueError when a gradient is not finite: the gradients are dropped, weights and moments unchanged.
        """
        grads_N, metrics = self.grads_N, {}
        self.grads_N = np.zeros_like(grads_N)
        norm = float(np.sqrt(np.square(grads_N, dtype=np.float64).sum()))
        if not np.isfinite(norm):
            raise ValueError(
                "optim_step: the accumulated gradient is not finite; it was dropped, the weights are unchanged"
            )
        if settings.grad_clip_norm > 0:
            metrics["grad_norm"] = norm
            if norm > settings.grad_clip_norm:
                grads_N *= np.float32(settings.grad_clip_norm / norm)
        self.step += 1
        first_N, second_N = self.moments_2N
        first_N *= np.float32(settings.beta1)
        first_N += np.float32(1 - settings.beta1) * grads_N
        second_N *= np.float32(settings.beta2)
        second_N += np.float32(1 - settings.beta2) * np.square(grads_N)
        first_scale = np.float32(settings.learning_rate / (1 - settings.beta1**self.step))
        second_scale = np.float32(1 / (1 - settings.beta2**self.step))
        if settings.weight_decay:
            self.flat_N *= np.float32(1 - settings.learning_rate * settings.weight_decay)
        self.flat_N -= first_scale * first_N / (np.sqrt(second_N * second_scale) + np.float32(settings.eps))
        return metrics


def save(path: Path, model_name: str, shape: ModelShape, flat_N: Flat, state: NumpyState | None = None) -> None:
    """Write weights and, with `state`, its moments and step count."""
    arrays: dict[str, Array] = {"weights": flat_N}
    if state is not None:
        arrays["moments"] = state.moments_2N
    header = {"format": FORMAT, "model": model_name, "shape": asdict(shape), "step": state.step if state else None}
    header["sha256"] = {name: hashlib.sha256(array.tobytes()).hexdigest() for name, array in arrays.items()}
    for name, array in arrays.items():
        np.save(path / f"{name}.npy", array, allow_pickle=False)
    (path / "state.json").write_text(json.dumps(header, indent=1) + "\n")


def load(path: Path, model_name: str, shape: ModelShape, *, optimizer: bool) -> NumpyState:
    """ValueError names the file that is missing, broken or of another model."""
    header = _header(path, model_name, shape)
    state = NumpyState(shape, _array(path, header, "weights", (shape.size,)))
    if optimizer:
        step = header.get("step")
        if not isinstance(step, int):
            raise ValueError(f"{path}: holds weights without optimizer state; load it without the optimizer")
        state.step = step
        state.moments_2N = _array(path, header, "moments", (2, shape.size))
    return state


def _header(path: Path, model_name: str, shape: ModelShape) -> dict[str, object]:
    file = path / "state.json"
    try:
        header = json.loads(file.read_text())
    except (OSError, ValueError) as error:
        raise ValueError(f"{file}: not a readable state of the numpy engine ({error})") from error
    if not isinstance(header, dict) or header.get("format") != FORMAT:
        raise ValueError(f"{file}: expected format {FORMAT}")
    if header.get("model") != model_name or header.get("shape") != asdict(shape):
        raise ValueError(f"{file}: written for {header.get('model')!r} {header.get('shape')}, not for {model_name!r}")
    return header


def _array(path: Path, header: dict[str, object], name: str, dims: tuple[int, ...]) -> npt.NDArray[np.float32]:
    file = path / f"{name}.npy"
    digests = header.get("sha256")
    try:
        array = np.load(file, allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise ValueError(f"{file}: unreadable ({error})") from error
    if array.dtype != np.float32 or array.shape != dims:
        raise ValueError(f"{file}: expected float32 {dims}, got {array.dtype} {array.shape}")
    if not isinstance(digests, dict) or digests.get(name) != hashlib.sha256(array.tobytes()).hexdigest():
        raise ValueError(f"{file}: its content does not match the digest in state.json")
    return np.ascontiguousarray(array)
