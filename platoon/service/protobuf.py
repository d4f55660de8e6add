"""The protocol buffer wire format, as far as the training service speaks it.

Own code rather than generated classes: those ship inside the `tinker` wheel, whose import costs more than a second and
which a server has no other use for. Reads any message field by field; unknown fields are skipped, as the format wants.
"""

from __future__ import annotations

from collections.abc import Iterator

VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5


def read_varint(buffer: memoryview, at: int) -> tuple[int, int]:
    """The unsigned integer at `at` and the position after it. ValueError when the buffer ends within it."""
    value = shift = 0
    while True:
        if at >= len(buffer) or shift > 63:
            raise ValueError("broken protobuf body: a number has no end")
        byte = buffer[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7


def fields(buffer: memoryview) -> Iterator[tuple[int, int | memoryview]]:
    """(field number, value) of a message: int for varints, raw bytes for everything else. ValueError when broken."""
    at, end = 0, len(buffer)
    while at < end:
        key, at = read_varint(buffer, at)
        number, kind = key >> 3, key & 7
        if kind == VARINT:
            value, at = read_varint(buffer, at)
            yield number, value
            continue
        if kind == BYTES:
            size, at = read_varint(buffer, at)
        elif kind in (FIXED64, FIXED32):
            size = 8 if kind == FIXED64 else 4
        else:
            raise ValueError(f"broken protobuf body: wire type {kind}")
        if at + size > end:
            raise ValueError("broken protobuf body: a field is cut off")
        yield number, buffer[at : at + size]
        at += size


def raw(value: int | memoryview) -> memoryview:
    """The value as bytes. ValueError where a number came instead."""
    if isinstance(value, int):
        raise ValueError("broken protobuf body: a number where bytes belong")
    return value


def text(value: int | memoryview) -> str:
    return str(raw(value), "utf-8")


def signed(value: int | memoryview) -> int:
    """A two's complement 64-bit number (int32 and int64 fields)."""
    if not isinstance(value, int):
        raise ValueError("broken protobuf body: bytes where a number belongs")
    return value - (1 << 64) if value >= 1 << 63 else value


def varint(value: int) -> bytes:
    """`value` as an unsigned varint; a negative one as its 64-bit two's complement."""
    value &= (1 << 64) - 1
    out = bytearray()
    while value > 0x7F:
        out.append((value & 0x7F) | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def write_bytes(number: int, value: bytes) -> bytes:
    """A length-delimited field: bytes, text or an embedded message."""
    return varint(number << 3 | BYTES) + varint(len(value)) + value


def write_int(number: int, value: int) -> bytes:
    """A varint field. Zero is the default and takes no bytes."""
    return varint(number << 3 | VARINT) + varint(value) if value else b""
