"""JSON as models write it: one value decoded from a place in a text, strictly first, then leniently.

Refused: NaN, infinities, floats out of range, nesting beyond 1,000, text that UTF-8 cannot hold.
"""

from __future__ import annotations

import json
from typing import Any

MAX_NESTING = 1000


class BadValue(ValueError):
    """The text at this place is no JSON value that a call may hold."""


def _constant(name: str) -> float:
    raise BadValue(f"{name} is not JSON")


def _float(text: str) -> float:
    value = float(text)
    if value - value != 0.0:
        raise BadValue(f"number {text[:40]} is out of range")
    return value


_STRICT = json.JSONDecoder(parse_constant=_constant, parse_float=_float)
_LENIENT = json.JSONDecoder(parse_constant=_constant, parse_float=_float, strict=False)


def decode_at(text: str, start: int) -> tuple[Any, int, bool]:
    """(value, end offset, lenient): the JSON value at `start`. `lenient`: raw control characters stood in strings.

    BadValue when there is none.
    """
    lenient = False
    try:
        try:
            value, end = _STRICT.raw_decode(text, start)
        except json.JSONDecodeError as error:
            if not error.msg.startswith("Invalid control character"):
                raise
            lenient = True
            value, end = _LENIENT.raw_decode(text, start)
    except BadValue:
        raise
    except RecursionError:
        raise BadValue(f"nested deeper than {MAX_NESTING}") from None
    except ValueError as error:
        raise BadValue(str(error)) from None
    _check(value, text, start, end)
    return value, end, lenient


def _check(value: Any, text: str, start: int, end: int) -> None:
    if _depth(value) > MAX_NESTING:
        raise BadValue(f"nested deeper than {MAX_NESTING}")
    if text.find("\\u", start, end) >= 0:
        try:
            json.dumps(value, ensure_ascii=False).encode()
        except UnicodeEncodeError:
            raise BadValue("a string holds half of a surrogate pair") from None


def _depth(value: Any) -> int:
    level, depth = [value], 0
    while level := [item for item in level if isinstance(item, dict | list)]:
        depth += 1
        level = [inner for item in level for inner in (item.values() if isinstance(item, dict) else item)]
    return depth
