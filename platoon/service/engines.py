"""The models that the embedded service can serve, by name."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from platoon.service.engine import Engine

MODELS = Path(__file__).resolve().parents[1] / "models"


def _platoon_tiny() -> Engine:
    from platoon.service.numpy_engine.shipped import read_model

    return read_model(MODELS / "platoon_tiny", "platoon-tiny")


_ENGINES: dict[str, Callable[[], Engine]] = {"platoon-tiny": _platoon_tiny}


def known_models() -> list[str]:
    """Names that `load_engine` accepts."""
    return sorted(_ENGINES)


def load_engine(model_name: str) -> Engine:
    """The engine that serves `model_name`. ValueError lists the known models for any other name."""
    if model_name not in _ENGINES:
        raise ValueError(f"model {model_name!r} is not served here; known models: {', '.join(known_models())}")
    return _ENGINES[model_name]()
