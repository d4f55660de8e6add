"""Parquet files of one schema one after the other as one file, by copying their pages: nothing is encoded again.

The footer is Thrift's compact protocol. It is read as plain values and written back with every offset moved to where
the bytes went. Page indexes are left out: they hold offsets of their own, and readers do without.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from shutil import copyfileobj
from typing import IO, Any

_MAGIC = b"PAR1"
_TRUE, _FALSE, _BYTE, _DOUBLE, _BINARY, _LIST, _SET, _STRUCT = 1, 2, 3, 7, 8, 9, 10, 12
_INTEGERS = (4, 5, 6)
_ONE = [bytes([value]) for value in range(256)]
# field numbers of parquet.thrift
_SCHEMA, _ROWS, _ROW_GROUPS = 2, 3, 4
_COLUMNS, _GROUP_OFFSET, _ORDINAL = 1, 5, 7
_CHUNK_OFFSET, _META, _INDEXES = 2, 3, (4, 5, 6, 7)
_PAGE_OFFSETS = (9, 10, 11, 14)

Struct = dict[int, tuple[int, Any]]  # field number to (type, value)
Elements = tuple[int, list[Any]]  # type of the elements, and they


def _read_varint(data: bytes, at: int) -> tuple[int, int]:
    """The number that begins at `at`, and where it ends."""
    byte = data[at]
    at += 1
    if byte < 0x80:
        return byte, at
    found, shift = byte & 0x7F, 7
    while True:
        byte = data[at]
        at += 1
        found |= (byte & 0x7F) << shift
        if byte < 0x80:
            return found, at
        shift += 7


def _read(kind: int, data: bytes, at: int) -> tuple[Any, int]:
    """The value of a type that begins at `at`, and where it ends."""
    if kind in _INTEGERS:
        raw, at = _read_varint(data, at)
        return (raw >> 1) ^ -(raw & 1), at
    if kind == _BINARY:
        length, at = _read_varint(data, at)
        return data[at : at + length], at + length
    if kind == _STRUCT:
        return _read_struct(data, at)
    if kind in (_LIST, _SET):
        count, of = data[at] >> 4, data[at] & 0x0F
        count, at = (count, at + 1) if count < 15 else _read_varint(data, at + 1)
        items = []
        for _ in range(count):
            item, at = _read(of, data, at)
            items.append(item)
        return (of, items), at
    if kind in (_TRUE, _FALSE, _BYTE):  # flags are a byte each inside a list only
        return data[at : at + 1], at + 1
    if kind == _DOUBLE:
        return data[at : at + 8], at + 8
    raise ValueError(f"a Parquet footer holds type {kind} of Thrift's compact protocol, which is not read here")


def _read_struct(data: bytes, at: int) -> tuple[Struct, int]:
    found: Struct = {}
    number = 0
    while head := data[at]:
        at += 1
        kind = head & 0x0F
        if head >> 4:
            number += head >> 4
        else:
            number, at = _read(_INTEGERS[0], data, at)
        value = None
        if kind > _FALSE:
            value, at = _read(kind, data, at)
        found[number] = (kind, value)
    return found, at + 1


def _varint(value: int) -> bytes:
    if value < 0x80:
        return _ONE[value]
    found = bytearray()
    while value >= 0x80:
        found.append(value & 0x7F | 0x80)
        value >>= 7
    found.append(value)
    return bytes(found)


def _zigzag(value: int) -> bytes:
    return _varint(value << 1 if value >= 0 else (-value << 1) - 1)


def _encoded(kind: int, value: Any) -> bytes:
    if kind in _INTEGERS:
        return _zigzag(value)
    if kind == _BINARY:
        return _varint(len(value)) + bytes(value)
    if kind == _STRUCT:
        return _encoded_struct(value)
    if kind in (_LIST, _SET):
        of, items = value
        head = bytes([len(items) << 4 | of]) if len(items) < 15 else bytes([0xF0 | of]) + _varint(len(items))
        return head + b"".join([_encoded(of, item) for item in items])
    return bytes(value)


def _encoded_struct(fields: Struct) -> bytes:
    found: list[bytes] = []
    before = 0
    for number in sorted(fields):
        kind, value = fields[number]
        near = number - before
        found.append(_ONE[near << 4 | kind] if 0 < near < 16 else _ONE[kind] + _zigzag(number))
        if value is not None:
            found.append(_encoded(kind, value))
        before = number
    found.append(b"\0")
    return b"".join(found)


@dataclass(frozen=True)
class ParquetFile:
    """A file's footer; `end`: where its pages end."""

    path: Path
    footer: Struct
    end: int

    @classmethod
    def open(cls, path: Path) -> ParquetFile:
        """ValueError when it is not a plain Parquet file."""
        with path.open("rb") as file:
            size = file.seek(0, 2)
            file.seek(max(size - 8, 0))
            tail = file.read()
            if tail[4:] != _MAGIC:
                raise ValueError(f"{path} is not a Parquet file")
            end = size - 8 - struct.unpack("<I", tail[:4])[0]
            file.seek(end)
            return cls(path, _read_struct(file.read(size - 8 - end), 0)[0], end)

    @property
    def rows(self) -> int:
        return int(self.footer[_ROWS][1])

    @property
    def row_groups(self) -> list[Struct]:
        groups: Elements = self.footer[_ROW_GROUPS][1]
        return groups[1]

    def same_columns(self, other: ParquetFile) -> bool:
        return self.footer[_SCHEMA] == other.footer[_SCHEMA]


def join(files: Sequence[ParquetFile], path: Path) -> None:
    """Write the rows of `files`, at least one and all of the same columns, to `path`.

    File metadata is the first one's. FileNotFoundError when a file is gone by now.
    """
    groups: list[Struct] = []
    with path.open("wb") as out:
        out.write(_MAGIC)
        for file in files:
            shift = out.tell() - len(_MAGIC)
            with file.path.open("rb") as pages:
                _copy(pages, out, file.end)
            groups += [_moved(group, shift) for group in file.row_groups]
        footer = dict(files[0].footer)
        footer[_ROWS] = (footer[_ROWS][0], sum(file.rows for file in files))
        footer[_ROW_GROUPS] = (_LIST, (_STRUCT, groups))
        encoded = _encoded_struct(footer)
        out.write(encoded + struct.pack("<I", len(encoded)) + _MAGIC)


def _copy(pages: IO[bytes], out: IO[bytes], end: int) -> None:
    """Everything between the magic bytes and the footer; what follows is cut off again."""
    begin = out.tell()
    pages.seek(len(_MAGIC))
    copyfileobj(pages, out, 1 << 20)
    out.seek(begin + end - len(_MAGIC))
    out.truncate()


def _moved(group: Struct, shift: int) -> Struct:
    of, chunks = group[_COLUMNS][1]
    found = {number: field for number, field in group.items() if number != _ORDINAL}
    found[_COLUMNS] = (_LIST, (of, [_moved_chunk(chunk, shift) for chunk in chunks]))
    return _shifted(found, (_GROUP_OFFSET,), shift)


def _moved_chunk(chunk: Struct, shift: int) -> Struct:
    found = {number: field for number, field in chunk.items() if number not in _INDEXES}
    found[_META] = (_STRUCT, _shifted(chunk[_META][1], _PAGE_OFFSETS, shift))
    return _shifted(found, (_CHUNK_OFFSET,), shift)


def _shifted(fields: Struct, numbers: Sequence[int], shift: int) -> Struct:
    """Offsets of 0 stay: they say that there is none."""
    moved = {n: (fields[n][0], fields[n][1] + shift) for n in numbers if n in fields and fields[n][1]}
    return {**fields, **moved}
