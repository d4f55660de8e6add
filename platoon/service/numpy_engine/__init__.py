"""The default engine of the embedded service: numpy only, deterministic, exact gradients."""

from platoon.service.numpy_engine.engine import NumpyEngine as NumpyEngine
