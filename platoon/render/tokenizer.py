"""A model's tokenizer, stop tokens and chat template, read from its directory.

Uses the `tokenizers` library alone. Text is encoded without added special tokens and decoded with special tokens
kept, so that what the model saw and wrote is what comes back.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer as FastTokenizer

from platoon.config import ConfigError
from platoon.render.contract import RenderError

log = logging.getLogger(__name__)

TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "generation_config.json",
    "special_tokens_map.json",
    "chat_template.jinja",
    "chat_template.json",
)
_SPECIAL_NAMES = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")


def read_json(path: Path) -> dict[str, Any]:
    """The JSON object in a file; {} when there is no such file. ConfigError when it is not an object."""
    if not path.is_file():
        return {}
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise ConfigError([f"{path} is not JSON ({error}); fetch the model's files again"]) from error
    if not isinstance(data, dict):
        raise ConfigError([f"{path} holds a {type(data).__name__}, not an object; fetch the model's files again"])
    return data


class Tokenizer:
    """Encode and decode with one `tokenizer.json`; thread-safe, never changed after loading."""

    def __init__(self, directory: Path) -> None:
        path = directory / "tokenizer.json"
        if not path.is_file():
            raise ConfigError([f"{directory} has no tokenizer.json; the chat_template renderer needs a fast tokenizer"])
        self.directory = directory
        self._fast = FastTokenizer.from_file(str(path))
        config = {**read_json(directory / "special_tokens_map.json"), **read_json(directory / "tokenizer_config.json")}
        self.special_tokens = {name: text for name in _SPECIAL_NAMES if (text := _token_text(config.get(name)))}
        self.vocab_size: int = self._fast.get_vocab_size(with_added_tokens=True)

    def encode(self, text: str) -> list[int]:
        """Token ids of the text. RenderError when it is not valid Unicode (a lone surrogate)."""
        try:
            ids: list[int] = self._fast.encode(text, add_special_tokens=False).ids
        except (UnicodeEncodeError, TypeError) as error:
            raise RenderError(f"the prompt is not valid Unicode: {error}") from error
        return ids

    def decode(self, tokens: Sequence[int]) -> str:
        """The tokens' text, special tokens included; bytes that are no UTF-8 become U+FFFD."""
        text: str = self._fast.decode(list(tokens), skip_special_tokens=False)
        return text

    def token_id(self, text: str) -> int | None:
        found: int | None = self._fast.token_to_id(text)
        return found

    def stop_tokens(self) -> tuple[int, ...]:
        """`eos_token_id` of generation_config.json, else the tokenizer's eos (logged). ConfigError without either."""
        listed = read_json(self.directory / "generation_config.json").get("eos_token_id")
        ids = [listed] if isinstance(listed, int) else listed if isinstance(listed, list) else []
        if ids and all(isinstance(i, int) and not isinstance(i, bool) for i in ids):
            return tuple(dict.fromkeys(ids))
        eos = self.special_tokens.get("eos_token")
        found = self.token_id(eos) if eos else None
        if found is None:
            raise ConfigError(
                [f"{self.directory} names no stop token: neither eos_token_id in generation_config.json nor eos_token"]
            )
        log.warning("%s has no eos_token_id in generation_config.json; stopping at %r", self.directory, eos)
        return (found,)


def _token_text(value: Any) -> str | None:
    """A special token's text: configs write it as a string or as {content: …}."""
    if isinstance(value, dict):
        value = value.get("content")
    return value if isinstance(value, str) else None
