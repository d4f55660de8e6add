"""The toy model: a byte-level tokenizer and a Qwen-style template, for tests and examples without a download.

Token i is byte i; 256 <|endoftext|>, 257 <|im_start|>, 258 <|im_end|>; 259-264 the tool and think tags.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

from platoon.render import Renderer, Tokenizer, build_renderer, model_directory

TOY_MODEL_NAME = "platoon/toy"
TOY_RENDERER_NAME = "chat_template"
TOY_TOKENIZER_DIR: Path = model_directory(TOY_MODEL_NAME)
TOY_EOS = 258


@cache
def toy_tokenizer() -> Tokenizer:
    return Tokenizer(TOY_TOKENIZER_DIR)


def toy_renderer(name: str = TOY_RENDERER_NAME, **renderer_kwargs: Any) -> Renderer:
    """A renderer of the toy model, by any preset's name."""
    return build_renderer(TOY_MODEL_NAME, name, renderer_kwargs)
