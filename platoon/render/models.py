"""Where a model's tokenizer and template are: shipped with platoon, in a local directory, or on the hub.

Only the small text files are fetched, never weights.
"""

from __future__ import annotations

from pathlib import Path

import platoon.models
from platoon.config import ConfigError
from platoon.render.tokenizer import TOKENIZER_FILES

_SHIPPED = {"platoon-tiny": "platoon_tiny", "platoon/tiny": "platoon_tiny", "platoon/toy": "toy"}


def model_directory(model_name: str) -> Path:
    """The directory with tokenizer.json and the template. ConfigError with the remedy when it cannot be had."""
    return local_directory(model_name) or _snapshot(model_name)


def local_directory(model_name: str) -> Path | None:
    """The directory of a shipped or local model; None for a name that only the hub can know. ConfigError."""
    if model_name in _SHIPPED:
        directory = Path(next(iter(platoon.models.__path__))) / _SHIPPED[model_name]
        if not directory.is_dir():
            raise ConfigError(
                [f"model {model_name} is not part of this installation ({directory} is missing); reinstall platoon"]
            )
        return directory
    local = Path(model_name).expanduser()
    if local.is_dir():
        return local.resolve()
    if local.is_absolute() or model_name.startswith((".", "~")):
        raise ConfigError([f"model directory {model_name} does not exist"])
    return None


def _snapshot(model_name: str) -> Path:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    try:
        return Path(snapshot_download(model_name, allow_patterns=list(TOKENIZER_FILES)))
    except HFValidationError as error:
        raise ConfigError(
            [f"model {model_name!r} is neither a directory nor a hub repository's name: {error}"]
        ) from error
    except LocalEntryNotFoundError as error:
        raise ConfigError(
            [
                f"the tokenizer of {model_name} is not in the local cache and the hub cannot be reached; "
                "fetch it once with network, or give a local directory with tokenizer.json and the chat template"
            ]
        ) from error
    except (HfHubHTTPError, OSError) as error:
        raise ConfigError(
            [
                f"the tokenizer of {model_name} cannot be fetched from the hub: {error}; check the name, "
                "set HF_TOKEN for a gated model, or give a local directory"
            ]
        ) from error
