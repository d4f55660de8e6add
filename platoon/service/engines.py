"""Which engine serves which model: a shipped name, a directory, or `package.module:function` that builds an engine."""

from __future__ import annotations

import importlib
from pathlib import Path

from platoon.service.engine import Engine

SHIPPED = {"platoon-tiny": Path(__file__).parent.parent / "models" / "platoon_tiny"}


def load_engine(model_name: str) -> Engine:
    """The engine of a model; `function` gets the name. ValueError for a name nobody serves."""
    directory = SHIPPED.get(model_name, Path(model_name))
    if model_name in SHIPPED or (directory / "engine.json").is_file():
        from platoon.service.numpy_engine.shipped import read_model

        return read_model(directory, model_name)
    module, _, function = model_name.partition(":")
    if not function:
        raise ValueError(
            f"this service has no model {model_name!r}; it has {', '.join(SHIPPED)}, a directory with an engine.json, "
            f"or module:function"
        )
    try:
        engine: Engine = getattr(importlib.import_module(module), function)(model_name)
    except (ImportError, AttributeError) as error:
        raise ValueError(f"the engine {model_name!r} cannot be loaded: {error}") from error
    return engine
