"""Requests and results as they travel: protobuf of SDK 0.18 and later, JSON of older ones.

Every function is pure. A body that cannot be read is a ValueError whose text can be shown to the user. What a loss or
a model makes of the numbers is the engine's concern.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from platoon.service.engine import Example, ExampleOutput, LossName, SampledSequence
from platoon.service.protobuf import fields, raw, read_varint, signed, text, write_bytes, write_int

PROTOBUF = "application/x-protobuf"
LOSSES = ("cross_entropy", "importance_sampling", "ppo", "cispo", "dro")
INPUT_DTYPES: dict[str, Any] = {
    "target_tokens": np.int64,
    "weights": np.float32,
    "logprobs": np.float32,
    "advantages": np.float32,
}
PROTO_DTYPES: dict[int, Any] = {1: np.float32, 2: np.int64, 3: np.int32}
OUTPUT_TYPE = "ArrayRecord"


@dataclass(frozen=True)
class Batch:
    """One forward or forward-backward call."""

    data: list[Example]
    loss_fn: LossName
    config: dict[str, float]
    forward_only: bool


@dataclass(frozen=True)
class TrainOutput:
    """The result of a forward or forward-backward call. JSON: per datum `logprobs` and `elementwise_loss`."""

    outputs: Sequence[ExampleOutput]
    metrics: Mapping[str, float]

    def json(self) -> dict[str, Any]:
        def tensor(values_T: npt.NDArray[np.float32]) -> dict[str, Any]:
            return {"data": values_T.tolist(), "dtype": "float32", "shape": [len(values_T)]}

        outputs = [{"logprobs": tensor(o.logprobs_T), "elementwise_loss": tensor(o.loss_T)} for o in self.outputs]
        return {"loss_fn_output_type": OUTPUT_TYPE, "loss_fn_outputs": outputs, "metrics": dict(self.metrics)}

    def protobuf(self) -> bytes:
        metrics = b"".join(
            write_bytes(3, write_bytes(1, key.encode()) + b"\x11" + struct.pack("<d", value))
            for key, value in self.metrics.items()
        )
        record = (
            write_bytes(1, OUTPUT_TYPE.encode())
            + _batched("logprobs", [o.logprobs_T for o in self.outputs])
            + _batched("elementwise_loss", [o.loss_T for o in self.outputs])
            + write_int(3, len(self.outputs))
        )
        return write_bytes(1, OUTPUT_TYPE.encode()) + write_bytes(2, record) + metrics


@dataclass(frozen=True)
class SampleOutput:
    """The result of a sampling call. A prompt logprob that does not exist (the first) is None."""

    sequences: Sequence[SampledSequence]
    prompt_logprobs: Sequence[float | None] | None = None

    def json(self) -> dict[str, Any]:
        sequences = [{"tokens": s.tokens, "logprobs": s.logprobs, "stop_reason": s.stop_reason} for s in self.sequences]
        return {"type": "sample", "sequences": sequences, "prompt_logprobs": self.prompt_logprobs}

    def protobuf(self) -> bytes:
        out = b"".join(
            write_bytes(
                1,
                write_int(1, int(s.stop_reason == "length"))
                + write_bytes(2, np.asarray(s.tokens, "<i4").tobytes())
                + write_bytes(3, np.asarray(s.logprobs, "<f4").tobytes()),
            )
            for s in self.sequences
        )
        if self.prompt_logprobs is not None:
            values = [math.nan if value is None else value for value in self.prompt_logprobs]
            out += write_bytes(2, np.asarray(values, "<f4").tobytes())
        return out


@dataclass
class _Datum:
    tokens: list[npt.NDArray[np.int32]] = field(default_factory=list)
    inputs: dict[str, npt.NDArray[Any]] = field(default_factory=dict)


def _batched(name: str, arrays: Sequence[npt.NDArray[np.float32]]) -> bytes:
    """One entry of an ArrayRecord's field map: the arrays end to end, with byte offsets."""
    offsets = np.cumsum([0, *(4 * len(a) for a in arrays)], dtype="<i8")
    data = b"".join(np.ascontiguousarray(a, "<f4").tobytes() for a in arrays)
    tensor = write_bytes(1, data) + write_bytes(2, offsets.tobytes()) + write_int(3, 1)
    return write_bytes(2, write_bytes(1, name.encode()) + write_bytes(2, tensor))


def protobuf_key(body: bytes) -> tuple[str, int]:
    """Model id and sequence number of a protobuf forward-backward request, without reading its data."""
    model_id, seq_id = "", 0
    for number, value in fields(memoryview(body)):
        if number == 1:
            model_id = text(value)
        elif number == 2:
            seq_id = signed(value)
    return model_id, seq_id


def batch_from_protobuf(body: bytes) -> Batch:
    """A `ForwardBackwardRequest`. ValueError names the datum that cannot be read."""
    data: list[Example] = []
    loss_fn, config, forward_only = "", {}, False
    for number, value in fields(memoryview(body)):
        if number == 3:
            data.append(_example(len(data), _protobuf_datum(raw(value))))
        elif number == 4:
            loss_fn = text(value)
        elif number == 5:
            key, setting = _map_entry(raw(value))
            config[key] = struct.unpack("<d", setting)[0] if setting else 0.0
        elif number == 6:
            forward_only = bool(value)
    return Batch(data, loss_name(loss_fn), config, forward_only)


def _map_entry(entry: memoryview) -> tuple[str, memoryview]:
    key, value = "", memoryview(b"")
    for number, part in fields(entry):
        if number == 1:
            key = text(part)
        elif number == 2:
            value = raw(part)
    return key, value


def _protobuf_datum(message: memoryview) -> _Datum:
    datum = _Datum()
    for number, value in fields(message):
        if number == 1:
            for kind, chunk in fields(raw(value)):
                if kind != 1:
                    raise ValueError("only text chunks are supported in a model input")
                datum.tokens.extend(np.frombuffer(raw(t), "<i4") for n, t in fields(raw(chunk)) if n == 1)
        elif number == 2:
            name, tensor = _map_entry(raw(value))
            datum.inputs[name] = _protobuf_tensor(name, tensor)
    return datum


def _protobuf_tensor(name: str, message: memoryview) -> npt.NDArray[Any]:
    data, dtype, shape = memoryview(b""), 0, []
    for number, value in fields(message):
        if number == 1:
            data = raw(value)
        elif number == 2:
            raise ValueError(f"loss input {name!r} is sparse; only dense tensors are supported")
        elif number == 3:
            dtype = signed(value)
        elif number == 4:
            shape.extend([value] if isinstance(value, int) else _packed(value))
    if dtype not in PROTO_DTYPES:
        raise ValueError(f"loss input {name!r} has the unsupported element type {dtype}")
    if len(shape) > 1:
        raise ValueError(f"loss input {name!r} has shape {shape}; one value a token is supported")
    return np.frombuffer(data, PROTO_DTYPES[dtype])


def _packed(buffer: memoryview) -> list[int]:
    values, at = [], 0
    while at < len(buffer):
        value, at = read_varint(buffer, at)
        values.append(value)
    return values


def batch_from_json(body: Mapping[str, Any], *, forward_only: bool) -> Batch:
    """The `forward_backward_input` (or `forward_input`) of a JSON request."""
    call = body.get("forward_input") or body.get("forward_backward_input")
    if not isinstance(call, dict) or not isinstance(call.get("data"), list):
        raise ValueError("the request holds no forward_backward_input with a list `data`")
    data = []
    for index, entry in enumerate(call["data"]):
        datum = _Datum([np.asarray(prompt_tokens(entry["model_input"]), np.int32)])
        for name, tensor in entry["loss_fn_inputs"].items():
            if len(tensor.get("shape") or [0]) > 1:
                raise ValueError(
                    f"datum {index}: loss input {name!r} has shape {tensor['shape']}, not one value a token"
                )
            datum.inputs[name] = np.asarray(tensor["data"])
        data.append(_example(index, datum))
    config = {str(key): float(value) for key, value in (call.get("loss_fn_config") or {}).items()}
    return Batch(data, loss_name(call.get("loss_fn", "")), config, forward_only)


def _example(index: int, datum: _Datum) -> Example:
    tokens_T = np.concatenate(datum.tokens) if datum.tokens else np.zeros(0, np.int32)
    inputs = {}
    for name, values in datum.inputs.items():
        dtype = INPUT_DTYPES.get(name)
        if dtype is None:
            raise ValueError(f"datum {index}: unknown loss input {name!r} (known: {', '.join(INPUT_DTYPES)})")
        if len(values) != len(tokens_T):
            raise ValueError(f"datum {index}: {name!r} has {len(values)} values for {len(tokens_T)} tokens")
        inputs[name] = values.astype(dtype)
    return Example(tokens_T.astype(np.int32), inputs)


def loss_name(name: str) -> LossName:
    if name not in LOSSES:
        raise ValueError(f"unknown loss function {name!r}; this service has {', '.join(LOSSES)}")
    return cast(LossName, name)


def prompt_tokens(model_input: Mapping[str, Any]) -> list[int]:
    """Token ids of a JSON model input. ValueError for images and audio."""
    tokens: list[int] = []
    for chunk in model_input["chunks"]:
        if chunk.get("type", "encoded_text") != "encoded_text":
            raise ValueError(f"a model input holds a chunk of type {chunk['type']!r}; only text is supported")
        tokens.extend(chunk["tokens"])
    return tokens
