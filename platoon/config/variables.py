"""Environment variables that components are found by. No other room reads the environment."""

from __future__ import annotations

import os

IGNORE_REQUIREMENTS = "PLATOON_IGNORE_EXTENSION_REQUIREMENTS"


def ignores_extension_requirements() -> bool:
    """Whether extensions are loaded although they were made for another version of platoon."""
    return os.environ.get(IGNORE_REQUIREMENTS, "").strip().lower() in ("1", "true", "yes", "on")
