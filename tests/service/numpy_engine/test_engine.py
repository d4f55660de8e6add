"""The engine's calls: refusals, optimizer, files, determinism."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from platoon.service.engine import AdamParams, Example, LossName
from platoon.service.engines import load_engine
from platoon.service.numpy_engine import NumpyEngine
from platoon.service.numpy_engine.state import NumpyState, NumpyWeights
from tests.service.numpy_engine.conftest import SMALL, random_examples


def fresh(engine: NumpyEngine) -> NumpyState:
    state = engine.create(rank=4, seed=9)
    assert isinstance(state, NumpyState)
    return state


def flat(weights: object) -> Any:
    assert isinstance(weights, NumpyWeights)
    return weights.flat_N


def changed(example: Example, **inputs: Any) -> Example:
    return Example(example.tokens_T, {**example.inputs, **inputs})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"target_tokens": np.full(5, 23)}, "example 1: target_tokens: token 23 is outside the vocabulary of 23"),
        ({"target_tokens": np.zeros(4, np.int64)}, "target_tokens has shape"),
        ({"advantages": np.array([0, 1, np.nan, 0, 0])}, "advantages holds a value that is not finite"),
    ],
)
def test_bad_inputs_are_refused_and_change_nothing(engine: NumpyEngine, change: dict[str, Any], message: str) -> None:
    good, other = random_examples(0, [5, 5])
    state = fresh(engine)
    with pytest.raises(ValueError, match=message):
        engine.forward_backward(state, [good, changed(other, **change)], "ppo", {})
    assert not state.grads_N.any()


def test_refusals_name_what_is_wrong(engine: NumpyEngine) -> None:
    (example,) = random_examples(0, [5])
    state, weights = fresh(engine), engine.weights(None)
    bare = Example(example.tokens_T, {"target_tokens": example.inputs["target_tokens"]})
    unknown: Any = "grpo"
    refusals: list[tuple[Callable[[], object], str]] = [
        (lambda: engine.forward_backward(state, [bare], "cispo", {}), "loss cispo needs the input 'logprobs'"),
        (lambda: engine.forward_backward(state, [bare], "cross_entropy", {}), "needs the input 'weights'"),
        (lambda: engine.forward_backward(state, [example], unknown, {}), "loss_fn 'grpo' is unknown"),
        (lambda: engine.forward_backward(state, [example], "ppo", {"clip": 1}), "unknown key 'clip'"),
        (lambda: engine.forward_backward(state, [example], "ppo", {"clip_low_threshold": 2}), "is above"),
        (lambda: engine.forward_backward(state, random_examples(0, [41]), "ppo", {}), "do not fit the context of 40"),
        (lambda: engine.sample(weights, [], num_samples=1, max_tokens=4), "at least one token"),
        (lambda: engine.sample(weights, [-1], num_samples=1, max_tokens=4), "token -1 is outside"),
        (lambda: engine.sample(weights, [1] * 30, num_samples=1, max_tokens=11), "exceed the context of 40"),
        (lambda: engine.sample(weights, [1], num_samples=1, max_tokens=4, top_p=0), "top_p"),
        (lambda: engine.sample(weights, [1], num_samples=1, max_tokens=4, top_k=0), "top_k"),
        (lambda: engine.sample(weights, [1], num_samples=1, max_tokens=4, temperature=-1), "temperature"),
        (lambda: load_engine("gpt-5"), "no model .gpt-5.*platoon-tiny"),
    ]
    for call, message in refusals:
        with pytest.raises(ValueError, match=message):
            call()
    assert not state.grads_N.any()


def test_forward_only_leaves_no_gradient(engine: NumpyEngine) -> None:
    examples = random_examples(0, [5, 9])
    state = fresh(engine)
    seen, _ = engine.forward_backward(state, examples, "cispo", {}, forward_only=True)
    assert not state.grads_N.any()
    trained, _ = engine.forward_backward(state, examples, "cispo", {})
    for left, right in zip(seen, trained, strict=True):
        assert np.array_equal(left.logprobs_T, right.logprobs_T)
        assert left.logprobs_T.dtype == left.loss_T.dtype == np.float32


def reference_adam(grads: list[Any], start: Any, settings: AdamParams) -> Any:
    """The textbook formula in float64."""
    value, first, second = start.astype(np.float64), 0.0, 0.0
    for step, grad in enumerate(grads, start=1):
        norm = np.sqrt((grad**2).sum())
        clipped = grad * min(1.0, settings.grad_clip_norm / norm) if settings.grad_clip_norm else grad
        first = settings.beta1 * first + (1 - settings.beta1) * clipped
        second = settings.beta2 * second + (1 - settings.beta2) * clipped**2
        rate = settings.learning_rate
        value = value * (1 - rate * settings.weight_decay)
        corrected = second / (1 - settings.beta2**step)
        value = value - rate * first / (1 - settings.beta1**step) / (np.sqrt(corrected) + settings.eps)
    return value


@pytest.mark.parametrize("clip", [0.0, 0.5])
def test_adam_follows_the_formula(engine: NumpyEngine, clip: float) -> None:
    settings = AdamParams(0.01, weight_decay=0.1, grad_clip_norm=clip)
    state = fresh(engine)
    start, grads = state.flat_N.copy(), []
    for seed in range(3):
        engine.forward_backward(state, random_examples(seed, [9]), "cross_entropy", {})
        grads.append(state.grads_N.astype(np.float64))
        metrics = engine.optim_step(state, settings)
        assert metrics == ({"grad_norm": pytest.approx(np.sqrt((grads[-1] ** 2).sum()))} if clip else {})
        assert not state.grads_N.any()
    np.testing.assert_allclose(state.flat_N, reference_adam(grads, start, settings), rtol=1e-5, atol=2e-6)


def test_a_gradient_that_is_not_finite_is_dropped(engine: NumpyEngine) -> None:
    state = fresh(engine)
    before = state.flat_N.copy()
    state.grads_N[3] = np.inf
    with pytest.raises(ValueError, match="not finite"):
        engine.optim_step(state, AdamParams(0.1))
    assert np.array_equal(state.flat_N, before)
    assert state.step == np.count_nonzero(state.grads_N) == 0


def train(engine: NumpyEngine, state: NumpyState, seeds: range, loss_fn: LossName = "cispo") -> None:
    for seed in seeds:
        engine.forward_backward(state, random_examples(seed, [9, 20, 4]), loss_fn, {})
        engine.optim_step(state, AdamParams(0.01, grad_clip_norm=1.0))


def test_training_from_a_saved_state_continues_bit_for_bit(engine: NumpyEngine, tmp_path: Path) -> None:
    straight, first = fresh(engine), fresh(engine)
    train(engine, straight, range(6))
    train(engine, first, range(3))
    engine.save(first, tmp_path)
    resumed = engine.load(tmp_path, optimizer=True)
    assert isinstance(resumed, NumpyState)
    assert np.array_equal(flat(engine.load_weights(tmp_path)), first.flat_N)
    train(engine, resumed, range(3, 6))
    assert np.array_equal(resumed.flat_N, straight.flat_N)
    assert np.array_equal(resumed.moments_2N, straight.moments_2N)
    cold = engine.load(tmp_path, optimizer=False)
    assert isinstance(cold, NumpyState)
    assert cold.step == np.count_nonzero(cold.moments_2N) == 0


def test_weights_are_a_snapshot(engine: NumpyEngine, tmp_path: Path) -> None:
    state = fresh(engine)
    snapshot = engine.weights(state)
    before = flat(snapshot).copy()
    train(engine, state, range(1))
    assert np.array_equal(flat(snapshot), before)
    assert not np.array_equal(state.flat_N, before)
    assert np.array_equal(flat(engine.weights(None)), before)
    engine.save_weights(snapshot, tmp_path)
    assert np.array_equal(flat(engine.load_weights(tmp_path)), before)
    with pytest.raises(ValueError, match="without optimizer state"):
        engine.load(tmp_path, optimizer=True)


def test_broken_files_are_refused(engine: NumpyEngine, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"state\.json"):
        engine.load(tmp_path, optimizer=True)
    engine.save(fresh(engine), tmp_path)
    content = (tmp_path / "weights.npy").read_bytes()
    (tmp_path / "weights.npy").write_bytes(content[:-5] + b"\x00\x00\x00\x00\x01")
    with pytest.raises(ValueError, match="does not match the digest"):
        engine.load(tmp_path, optimizer=True)
    (tmp_path / "weights.npy").write_bytes(content[:200])
    with pytest.raises(ValueError, match=r"weights\.npy: unreadable"):
        engine.load_weights(tmp_path)
    (tmp_path / "weights.npy").write_bytes(content)
    header = json.loads((tmp_path / "state.json").read_text())
    (tmp_path / "state.json").write_text(json.dumps({**header, "model": "other"}))
    with pytest.raises(ValueError, match="written for 'other'"):
        engine.load(tmp_path, optimizer=False)


def test_forward_backward_is_deterministic(engine: NumpyEngine) -> None:
    examples = random_examples(8, [int(n) for n in np.random.default_rng(0).integers(1, SMALL.context, 60)])
    states = [fresh(engine), fresh(engine)]
    outputs = [engine.forward_backward(state, examples, "cispo", {})[0] for state in states]
    assert np.array_equal(states[0].grads_N, states[1].grads_N)
    for left, right in zip(*outputs, strict=True):
        assert np.array_equal(left.logprobs_T, right.logprobs_T)
        assert left.logprobs_T.dtype == left.loss_T.dtype == np.float32
