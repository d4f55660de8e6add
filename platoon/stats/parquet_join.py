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
# field numbers of parquet.thrift
_SCHEMA, _ROWS, _ROW_GROUPS = 2, 3, 4
_COLUMNS, _GROUP_OFFSET, _ORDINAL = 1, 5, 7
_CHUNK_OFFSET, _META, _INDEXES = 2, 3, (4, 5, 6, 7)
_PAGE_OFFSETS = (9, 10, 11, 14)

Struct = dict[int, tuple[int, Any]]  # field number to (type, value)
Elements = tuple[int, list[Any]]  # type of the elements, and they


class _Reader:
    def __init__(self, data: bytes) -> None:
        self._data, self._at = data, 0

    def _varint(self) -> int:
        found, shift = 0, 0
        while True:
            byte = self._data[self._at]
            self._at += 1
            found |= (byte & 0x7F) << shift
            if byte < 0x80:
                return found
            shift += 7

    def _zigzag(self) -> int:
        raw = self._varint()
        return (raw >> 1) ^ -(raw & 1)

    def _take(self, count: int) -> bytes:
        found = self._data[self._at : self._at + count]
        self._at += count
        return found

    def value(self, kind: int) -> Any:
        if kind in _INTEGERS:
            return self._zigzag()
        if kind == _BINARY:
            return self._take(self._varint())
        if kind == _STRUCT:
            return self.struct()
        if kind in (_LIST, _SET):
            head = self._take(1)[0]
            count, of = head >> 4, head & 0x0F
            return of, [self.value(of) for _ in range(self._varint() if count == 15 else count)]
        if kind in (_TRUE, _FALSE, _BYTE):  # flags are a byte each inside a list only
            return self._take(1)
        if kind == _DOUBLE:
            return self._take(8)
        raise ValueError(f"a Parquet footer holds type {kind} of Thrift's compact protocol, which is not read here")

    def struct(self) -> Struct:
        found: Struct = {}
        number = 0
        while head := self._take(1)[0]:
            kind = head & 0x0F
            number = number + (head >> 4) if head >> 4 else self._zigzag()
            found[number] = (kind, None if kind in (_TRUE, _FALSE) else self.value(kind))
        return found


def _varint(value: int) -> bytes:
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
    for number, (kind, value) in sorted(fields.items()):
        near = 0 < number - before < 16
        found.append(bytes([(number - before) << 4 | kind]) if near else bytes([kind]) + _zigzag(number))
        if value is not None:
            found.append(_encoded(kind, value))
        before = number
    return b"".join(found) + b"\0"


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
            return cls(path, _Reader(file.read(size - 8 - end)).struct(), end)

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
