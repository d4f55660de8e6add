"""Which recorded call a new prompt continues.

A prompt continues a call when its text begins with that call's prompt and reply. Then the recorded ids are reused and
only the rest is encoded: tokens never change under a conversation, and a turn costs its own length. Texts are kept as
a length and a digest.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

MOST_TAILS = 4


@dataclass(frozen=True, slots=True)
class Tail:
    """The end of a recorded conversation: prompt and reply of `call_id`, `length` characters."""

    call_id: str
    length: int
    digest: bytes


class Tails:
    """The most recent conversation ends of one agent. An end that was continued makes room for the new one."""

    __slots__ = ("_tails",)

    def __init__(self) -> None:
        self._tails: list[Tail] = []

    def match(self, prompt_text: str) -> Tail | None:
        """The longest recorded conversation that the prompt begins with."""
        for tail in sorted(self._tails, key=lambda t: t.length, reverse=True):
            if tail.length <= len(prompt_text) and digest(prompt_text[: tail.length]) == tail.digest:
                return tail
        return None

    def add(self, call_id: str, text: str, continues: str | None) -> None:
        self._tails = [tail for tail in self._tails if tail.call_id != continues][-(MOST_TAILS - 1) :]
        self._tails.append(Tail(call_id, len(text), digest(text)))


def digest(text: str) -> bytes:
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).digest()
