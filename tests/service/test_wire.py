"""Our codec against the SDK's own generated classes, and what it refuses."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import tinker
from hypothesis import given, settings
from hypothesis import strategies as st
from tinker.proto.request_conv import forward_backward_request_to_proto
from tinker.proto.response_conv import deserialize_forward_backward_output, deserialize_sample_response

from platoon.service.engine import ExampleOutput, SampledSequence
from platoon.service.protobuf import fields, signed, varint, write_int
from platoon.service.wire import SampleOutput, TrainOutput, batch_from_json, batch_from_protobuf, protobuf_key

tokens = st.lists(st.integers(0, 2**31 - 1), min_size=1, max_size=20)
floats = st.floats(-(2.0**90), 2.0**90, width=32)


@given(st.integers(-(2**63), 2**63 - 1))
@settings(max_examples=60)
def test_varints_round_trip(value: int) -> None:
    [(number, read)] = list(fields(memoryview(write_int(7, value)))) or [(7, 0)]
    assert (number, signed(read)) == (7, value)


@given(st.binary(max_size=40))
@settings(max_examples=60)
def test_broken_bodies_are_value_errors(body: bytes) -> None:
    try:
        batch_from_protobuf(body)
    except ValueError:
        return
    pytest.fail("an arbitrary body names no loss function, it cannot be a request")


@given(
    st.lists(st.tuples(tokens, st.integers(0, 3)), min_size=1, max_size=4),
    st.dictionaries(st.text(max_size=5), st.floats(allow_nan=False), max_size=3),
    st.booleans(),
)
@settings(max_examples=40)
def test_requests_of_the_sdk_are_read(
    rows: list[tuple[list[int], int]], config: dict[str, float], forward_only: bool
) -> None:
    data = []
    for row, split in rows:
        chunks: list[Any] = [tinker.EncodedTextChunk(tokens=row[:split]), tinker.EncodedTextChunk(tokens=row[split:])]
        inputs: Any = {"target_tokens": np.asarray(row, np.int64), "advantages": np.asarray(row, np.float32) / 7}
        data.append(tinker.Datum(model_input=tinker.ModelInput(chunks=chunks), loss_fn_inputs=inputs))
    request = tinker.types.ForwardBackwardRequest(
        forward_backward_input=tinker.types.ForwardBackwardInput(data=data, loss_fn="ppo", loss_fn_config=config),
        model_id="run:train:0",
        seq_id=3,
    )
    message = forward_backward_request_to_proto(request)
    message.forward_only = forward_only
    body = message.SerializeToString()
    batch = batch_from_protobuf(body)
    assert protobuf_key(body) == ("run:train:0", 3)
    assert (batch.loss_fn, batch.config, batch.forward_only) == ("ppo", config, forward_only)
    for example, (row, _) in zip(batch.data, rows, strict=True):
        assert example.tokens_T.tolist() == row
        assert example.inputs["target_tokens"].tolist() == row
        assert example.inputs["advantages"].tolist() == (np.asarray(row, np.float32) / 7).tolist()


@given(st.lists(st.tuples(tokens, st.booleans()), max_size=3), st.booleans())
@settings(max_examples=30)
def test_samples_are_read_by_the_sdk(rows: list[tuple[list[int], bool]], scored: bool) -> None:
    sequences = [SampledSequence(row, [-t / 8 for t in row], "length" if cut else "stop") for row, cut in rows]
    output = SampleOutput(sequences, [None, -0.5] if scored else None)
    read = deserialize_sample_response(output.protobuf())
    assert [(s.tokens, s.stop_reason) for s in read.sequences] == [(s.tokens, s.stop_reason) for s in sequences]
    for got, sent in zip(read.sequences, sequences, strict=True):
        assert got.logprobs == np.asarray(sent.logprobs, np.float32).tolist()
    assert read.prompt_logprobs == ([None, -0.5] if scored else None)


@given(st.lists(st.lists(floats, max_size=6), max_size=4), st.dictionaries(st.text(max_size=5), floats, max_size=3))
@settings(max_examples=30)
def test_training_outputs_are_read_by_the_sdk(rows: list[list[float]], metrics: dict[str, float]) -> None:
    outputs = [ExampleOutput(np.asarray(row, np.float32), np.asarray(row, np.float32) * 2) for row in rows]
    read = deserialize_forward_backward_output(TrainOutput(outputs, metrics).protobuf())
    assert read.metrics == metrics
    assert [o["logprobs"].data for o in read.loss_fn_outputs] == [o.logprobs_T.tolist() for o in outputs]
    assert [o["elementwise_loss"].data for o in read.loss_fn_outputs] == [o.loss_T.tolist() for o in outputs]
    json = TrainOutput(outputs, metrics).json()["loss_fn_outputs"]
    assert [o["logprobs"]["data"] for o in json] == [o.logprobs_T.tolist() for o in outputs]


def json_call(**changes: Any) -> dict[str, Any]:
    tensor = {"data": [1, 2], "dtype": "int64", "shape": [2]}
    datum = {
        "model_input": {"chunks": [{"type": "encoded_text", "tokens": [3, 4]}]},
        "loss_fn_inputs": {"target_tokens": tensor},
    }
    return {"forward_backward_input": {"data": [{**datum, **changes}], "loss_fn": "cross_entropy"}}


def test_json_requests_are_read() -> None:
    batch = batch_from_json(json_call(), forward_only=True)
    assert batch.forward_only
    assert batch.data[0].tokens_T.tolist() == [3, 4]
    assert batch.data[0].inputs["target_tokens"].dtype == np.int64


@pytest.mark.parametrize(
    ("inputs", "said"),
    [
        ({"mask": {"data": [1, 1], "shape": [2]}}, "unknown loss input 'mask'"),
        ({"target_tokens": {"data": [1], "shape": [1]}}, "1 values for 2 tokens"),
        ({"target_tokens": {"data": [1, 2], "shape": [1, 2]}}, "shape"),
    ],
)
def test_wrong_loss_inputs_are_named(inputs: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        batch_from_json(json_call(loss_fn_inputs=inputs), forward_only=False)


def test_images_are_refused() -> None:
    with pytest.raises(ValueError, match="'image'"):
        batch_from_json(json_call(model_input={"chunks": [{"type": "image", "data": ""}]}), forward_only=False)


def test_missing_prompt_logprobs_are_nan_on_the_wire() -> None:
    body = SampleOutput([], [None, -1.0]).protobuf()
    [(number, value)] = list(fields(memoryview(body)))
    assert not isinstance(value, int)
    first, second = np.frombuffer(value, "<f4").tolist()
    assert number == 2
    assert math.isnan(first)
    assert second == -1.0


def test_varint_of_a_negative_number_is_ten_bytes() -> None:
    assert len(varint(-1)) == 10
