"""Datums as Parquet columns, exact to the bit and about as small as their tokens and logprobs allow.

Mask, advantages and error marks are stored as runs of equal values; logprobs as the values that are not +0.0 with the
lengths of the gaps; targets only where they are not simply the next token.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from platoon.credit import Datum

Array = npt.NDArray[Any]
_TYPES: dict[str, tuple[Any, pa.DataType]] = {
    "tokens": (np.int32, pa.int32()),
    "targets": (np.int32, pa.int32()),
    "logprobs": (np.float32, pa.float32()),
    "logprob_gaps": (np.int32, pa.int32()),
    "mask_values": (np.float32, pa.float32()),
    "mask_lengths": (np.int32, pa.int32()),
    "advantage_values": (np.float32, pa.float32()),
    "advantage_lengths": (np.int32, pa.int32()),
    "error_values": (np.float32, pa.float32()),
    "error_lengths": (np.int32, pa.int32()),
}
_SCALARS: dict[str, pa.DataType] = {
    "version": pa.int64(),
    "depth": pa.int32(),
    "traj_start": pa.float64(),
    "routing_id": pa.int64(),
    "policy": pa.string(),
}
FIELDS = [*((name, pa.list_(kind)) for name, (_, kind) in _TYPES.items()), *_SCALARS.items()]
PLAIN = ("tokens", "targets", "logprobs")
"""Columns whose values rarely repeat: split by bytes instead of put in a dictionary."""


def columns(datums: Sequence[Datum | None]) -> dict[str, pa.Array]:
    """Columns of `FIELDS`, one row a datum. None gives a row of nulls."""
    parts = [_encode(datum) if datum is not None else {} for datum in datums]
    found = {
        name: _list_column([part.get(name) for part in parts], dtype, kind) for name, (dtype, kind) in _TYPES.items()
    }
    for name, kind in _SCALARS.items():
        found[name] = pa.array([None if datum is None else getattr(datum, name) for datum in datums], kind)
    return found


def datums(table: pa.Table) -> list[Datum | None]:
    """The rows of a table with those columns as datums again."""
    lists = {name: _arrays(table.column(name)) for name in _TYPES}
    scalars = {name: table.column(name).to_pylist() for name in _SCALARS}
    return [
        _decode(
            {name: arrays[row] for name, arrays in lists.items()}, {name: found[row] for name, found in scalars.items()}
        )
        for row in range(table.num_rows)
    ]


def _encode(datum: Datum) -> dict[str, Array | None]:
    shifted = len(datum.tokens_T) > 0 and bool(np.array_equal(datum.tokens_T[1:], datum.targets_T[:-1]))
    gaps, logprobs = _sparse(datum.logprobs_T)
    mask_lengths, mask_values = _runs(datum.mask_T)
    advantage_lengths, advantage_values = _runs(datum.advantages_T)
    found: dict[str, Array | None] = {
        "tokens": np.concatenate((datum.tokens_T, datum.targets_T[-1:])) if shifted else datum.tokens_T,
        "targets": None if shifted else datum.targets_T,
        "logprobs": logprobs,
        "logprob_gaps": gaps,
        "mask_values": mask_values,
        "mask_lengths": mask_lengths,
        "advantage_values": advantage_values,
        "advantage_lengths": advantage_lengths,
    }
    if datum.errors_T is not None:
        found["error_lengths"], found["error_values"] = _runs(datum.errors_T.astype(np.float32))
    return found


def _decode(lists: dict[str, Array | None], scalars: dict[str, Any]) -> Datum | None:
    if scalars["version"] is None:
        return None
    tokens, targets = _given(lists["tokens"]), lists["targets"]
    if targets is None:
        tokens, targets = tokens[:-1], tokens[1:]
    errors = lists["error_values"]
    return Datum(
        tokens_T=tokens,
        targets_T=targets,
        logprobs_T=_dense(_given(lists["logprob_gaps"]), _given(lists["logprobs"])),
        advantages_T=np.repeat(_given(lists["advantage_values"]), _given(lists["advantage_lengths"])),
        mask_T=np.repeat(_given(lists["mask_values"]), _given(lists["mask_lengths"])),
        errors_T=None if errors is None else np.repeat(errors, _given(lists["error_lengths"])).astype(np.bool_),
        **scalars,
    )


def _runs(values: Array) -> tuple[Array, Array]:
    """(lengths, values) of runs that are equal bit for bit."""
    if len(values) == 0:
        return np.empty(0, np.int32), values
    bits = np.ascontiguousarray(values).view(np.int32)
    starts = np.concatenate(([0], np.flatnonzero(bits[1:] != bits[:-1]) + 1))
    return np.diff(np.append(starts, len(values))).astype(np.int32), values[starts]


def _sparse(values: Array) -> tuple[Array, Array]:
    """(lengths, rest): alternating lengths of +0.0 and other stretches, zeros first, and the other values."""
    other = np.ascontiguousarray(values).view(np.int32) != 0
    edges = np.flatnonzero(np.diff(other.astype(np.int8), prepend=0))
    return np.diff(np.concatenate(([0], edges, [len(values)]))).astype(np.int32), values[other]


def _dense(lengths: Array, rest: Array) -> Array:
    other = np.repeat(np.arange(len(lengths)) % 2 == 1, lengths)
    found = np.zeros(len(other), np.float32)
    found[other] = rest
    return found


def _list_column(parts: Iterable[Array | None], dtype: Any, kind: pa.DataType) -> pa.Array:
    """A list column without a Python object per value."""
    found = list(parts)
    sizes = [0 if part is None else len(part) for part in found]
    offsets = np.concatenate(([0], np.cumsum(sizes, dtype=np.int64))).astype(np.int32)
    present = [part for part in found if part is not None]
    flat = np.concatenate(present).astype(dtype, copy=False) if present else np.empty(0, dtype)
    missing = pa.array([part is None for part in found], pa.bool_())
    return pa.ListArray.from_arrays(pa.array(offsets), pa.array(flat, kind), mask=missing)


def _arrays(column: pa.ChunkedArray) -> list[Array | None]:
    found: list[Array | None] = []
    for chunk in column.chunks:
        values, offsets = chunk.values.to_numpy(zero_copy_only=False), chunk.offsets.to_numpy()
        valid = chunk.is_valid().to_numpy(zero_copy_only=False)
        found += [values[offsets[i] : offsets[i + 1]] if valid[i] else None for i in range(len(chunk))]
    return found


def _given(values: Array | None) -> Array:
    if values is None:
        raise ValueError("a datum lacks one of its columns")
    return values
