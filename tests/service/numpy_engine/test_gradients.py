"""The hand-written gradient against central differences in float64, for all losses."""

from __future__ import annotations

from collections.abc import Mapping
from typing import get_args

import numpy as np
import pytest

from platoon.service.engine import Example, LossName
from platoon.service.numpy_engine import NumpyEngine
from platoon.service.numpy_engine.losses import loss_terms, settings
from platoon.service.numpy_engine.network import backward, forward, log_probabilities, output_gradient
from platoon.service.numpy_engine.shape import Array, alibi, layout, views
from platoon.service.numpy_engine.state import NumpyState
from tests.service.numpy_engine.conftest import SMALL, random_examples, random_weights

LOSSES = get_args(LossName)
WIDE = {"clip_low_threshold": 0.5, "clip_high_threshold": 5.0, "beta": 0.3}


def objective(flat_N: Array, examples: list[Example], loss_fn: LossName, fixed_N: Array | None = None) -> float:
    """Token-summed loss computed in float64. `fixed_N`: weights whose ratio cispo uses as a constant."""
    total = 0.0
    for example in examples:
        logp_T = _logp(flat_N, example)
        inputs = dict(example.inputs)
        if loss_fn == "cispo" and fixed_N is not None:
            ratio_T = np.clip(np.exp(_logp(fixed_N, example) - inputs["logprobs"]), 0.5, 5.0)
            total -= float((ratio_T * logp_T * inputs["advantages"]).sum())
        else:
            total += float(loss_terms(loss_fn, inputs, logp_T, settings(loss_fn, WIDE))[0].sum())
    return total


def _logp(flat_N: Array, example: Example) -> Array:
    params = views(SMALL, flat_N)
    trace = forward(SMALL, params, example.tokens_T[None, :], alibi(SMALL, len(example.tokens_T), np.float64))
    return log_probabilities(params, trace.normed, example.inputs["target_tokens"])[0]


def gradient(flat_N: Array, examples: list[Example], loss_fn: LossName) -> Array:
    grads_N = np.zeros_like(flat_N)
    params, grads = views(SMALL, flat_N), views(SMALL, grads_N)
    for example in examples:
        trace = forward(SMALL, params, example.tokens_T[None, :], alibi(SMALL, len(example.tokens_T), np.float64))
        targets_T = example.inputs["target_tokens"]
        logp_T, probs_TV = log_probabilities(params, trace.normed, targets_T)
        slope_T = loss_terms(loss_fn, example.inputs, logp_T, settings(loss_fn, WIDE))[1]
        backward(
            SMALL, params, grads, trace, output_gradient(params, grads, trace.normed, probs_TV, targets_T, slope_T)
        )
    return grads_N


@pytest.mark.parametrize("loss_fn", LOSSES)
def test_gradient_of_every_parameter_kind_matches_differences(loss_fn: LossName) -> None:
    flat_N = random_weights(5).astype(np.float64)
    examples = random_examples(1, [7, 1, 12])
    exact_N = gradient(flat_N, examples, loss_fn)
    rng = np.random.default_rng(0)
    start, width = 0, 1e-6
    for name, dims in layout(SMALL):
        size = int(np.prod(dims))
        for index in start + rng.choice(size, min(6, size), replace=False):
            moved = []
            for sign in (1, -1):
                shifted_N = flat_N.copy()
                shifted_N[index] += sign * width
                moved.append(objective(shifted_N, examples, loss_fn, fixed_N=flat_N))
            measured = (moved[0] - moved[1]) / (2 * width)
            assert exact_N[index] == pytest.approx(measured, rel=2e-5, abs=2e-6), name
        start += size
    assert np.count_nonzero(exact_N) > 0.8 * exact_N.size


@pytest.mark.parametrize("loss_fn", LOSSES)
def test_engine_batches_give_the_float64_gradient(engine: NumpyEngine, loss_fn: LossName) -> None:
    """Padding and grouping by length change nothing beyond float32 rounding."""
    examples = random_examples(2, [3, 30, 9, 9, 1, 17])
    state = engine.create(rank=8, seed=0)
    assert isinstance(state, NumpyState)
    outputs, metrics = engine.forward_backward(state, examples, loss_fn, WIDE)
    flat_N = state.flat_N.astype(np.float64)
    exact_N = gradient(flat_N, examples, loss_fn)
    assert np.abs(state.grads_N - exact_N).max() < 2e-5 * np.abs(exact_N).max()
    for output, example in zip(outputs, examples, strict=True):
        np.testing.assert_allclose(output.logprobs_T, _logp(flat_N, example), atol=2e-5)
    assert metrics["loss:sum"] == pytest.approx(objective(flat_N, examples, loss_fn), rel=1e-5, abs=1e-4)
    assert metrics["loss:sum"] == pytest.approx(sum(float(output.loss_T.sum()) for output in outputs), rel=1e-6)


def test_gradients_accumulate_over_calls(engine: NumpyEngine) -> None:
    examples = random_examples(4, [6, 6])
    once, twice = engine.create(rank=1, seed=0), engine.create(rank=1, seed=0)
    engine.forward_backward(once, examples, "importance_sampling", {})
    for example in examples:
        engine.forward_backward(twice, [example], "importance_sampling", {})
    assert isinstance(once, NumpyState)
    assert isinstance(twice, NumpyState)
    np.testing.assert_allclose(twice.grads_N, once.grads_N, atol=1e-5)


def terms(
    loss_fn: LossName, advantage: float, logprob: float, logp: float, config: Mapping[str, float]
) -> tuple[float, float]:
    inputs = {"advantages": np.array([advantage]), "logprobs": np.array([logprob]), "weights": np.array([advantage])}
    loss_T, slope_T = loss_terms(loss_fn, inputs, np.array([logp]), settings(loss_fn, config))
    return float(loss_T[0]), float(slope_T[0])


@pytest.mark.parametrize(
    ("loss_fn", "advantage", "logprob", "expected"),
    [
        ("cross_entropy", 2.0, 0.0, (2.0, -2.0)),
        ("importance_sampling", 2.0, -1.0, (-2.0, -2.0)),
        ("importance_sampling", 2.0, -1 - np.log(8), (-16.0, -16.0)),
        # the thresholds bound the ratio itself: 8 is above 5, so ppo is flat there for a positive advantage only
        ("ppo", 2.0, -1 - np.log(8), (-10.0, 0.0)),
        ("ppo", -2.0, -1 - np.log(8), (16.0, 16.0)),
        ("ppo", -2.0, -1 + np.log(4), (1.0, 0.0)),
        ("cispo", 2.0, -1 - np.log(8), (10.0, -10.0)),
        ("cispo", 2.0, -1 + np.log(4), (1.0, -1.0)),
        ("dro", 2.0, -1.5, (2.0 + 0.15 * 0.25, -2.0 + 0.3 * 0.5)),
        ("dro", 0.0, 0.0, (0.0, 0.0)),
    ],
)
def test_loss_values(loss_fn: LossName, advantage: float, logprob: float, expected: tuple[float, float]) -> None:
    assert terms(loss_fn, advantage, logprob, -1.0, WIDE) == pytest.approx(expected)


def test_a_position_without_advantage_may_carry_any_logprob() -> None:
    with np.errstate(all="raise"):
        for loss_fn in ("importance_sampling", "ppo", "cispo"):
            assert terms(loss_fn, 0.0, -5000.0, -1.0, WIDE) == (0.0, 0.0)


def test_default_thresholds_are_the_documented_ones() -> None:
    assert terms("ppo", 1.0, -1 - np.log(3), -1.0, {})[0] == pytest.approx(-1.2)
    assert terms("cispo", 1.0, -1 + np.log(3), -1.0, {})[1] == pytest.approx(-0.8)
