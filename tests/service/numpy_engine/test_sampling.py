"""Sampling: agreement with the trained distribution, seeds, cuts, stops."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from platoon.service.engine import Example
from platoon.service.numpy_engine import NumpyEngine
from platoon.service.numpy_engine.decode import Choice
from tests.service.numpy_engine.conftest import SMALL

PROMPT = [4, 9, 9, 1, 17]


def scored(engine: NumpyEngine, prompt: list[int], tokens: list[int]) -> list[float]:
    """Log-probabilities of `tokens` after `prompt` as the training pass sees them."""
    whole = np.array(prompt + tokens)
    zeros = np.zeros(len(whole) - 1, np.float32)
    example = Example(whole[:-1].astype(np.int32), {"target_tokens": whole[1:], "weights": zeros})
    (output,), _ = engine.forward_backward(
        engine.create(rank=1, seed=0), [example], "cross_entropy", {}, forward_only=True
    )
    return [float(value) for value in output.logprobs_T[len(prompt) - 1 :]]


@pytest.mark.parametrize("temperature", [0.0, 0.5, 1.0, 2.0])
def test_logprobs_are_untempered_and_those_of_training(engine: NumpyEngine, temperature: float) -> None:
    weights = engine.weights(None)
    for sequence in engine.sample(weights, PROMPT, num_samples=3, max_tokens=30, temperature=temperature, seed=5):
        np.testing.assert_allclose(sequence.logprobs, scored(engine, PROMPT, sequence.tokens), atol=2e-5)
        values = engine.prompt_logprobs(weights, PROMPT + sequence.tokens)
        assert values[0] is None
        again = [value for value in values[len(PROMPT) :] if value is not None]
        np.testing.assert_allclose(again, sequence.logprobs, atol=2e-5)


def test_a_sequence_depends_on_seed_and_index_only(engine: NumpyEngine) -> None:
    weights = engine.weights(None)
    five = engine.sample(weights, PROMPT, num_samples=5, max_tokens=12, seed=1)
    engine.sample(weights, [2] * 20, num_samples=2, max_tokens=20, seed=3)
    assert engine.sample(weights, PROMPT, num_samples=2, max_tokens=12, seed=1) == five[:2]
    assert engine.sample(weights, PROMPT, num_samples=1, max_tokens=12, seed=2) != five[:1]
    assert len({tuple(sequence.tokens) for sequence in five}) > 1
    shorter = engine.sample(weights, PROMPT, num_samples=5, max_tokens=7, seed=1)
    assert [sequence.tokens for sequence in shorter] == [sequence.tokens[:7] for sequence in five]


def test_unseeded_calls_differ(engine: NumpyEngine) -> None:
    weights = engine.weights(None)
    drawn = {tuple(engine.sample(weights, PROMPT, num_samples=1, max_tokens=20)[0].tokens) for _ in range(4)}
    assert len(drawn) > 1


def test_greedy_takes_the_likeliest(engine: NumpyEngine) -> None:
    weights = engine.weights(None)
    (greedy,) = engine.sample(weights, PROMPT, num_samples=1, max_tokens=6, temperature=0)
    context = list(PROMPT)
    for token in greedy.tokens:
        options = [scored(engine, context, [candidate])[0] for candidate in range(SMALL.vocab)]
        assert options[token] == pytest.approx(max(options), abs=1e-5)
        context.append(token)


def test_first_token_follows_the_distribution(engine: NumpyEngine) -> None:
    draws = engine.sample(engine.weights(None), PROMPT, num_samples=6000, max_tokens=1, seed=11)
    counts = np.bincount([draw.tokens[0] for draw in draws], minlength=SMALL.vocab) / 6000
    expected = np.exp([scored(engine, PROMPT, [token])[0] for token in range(SMALL.vocab)])
    assert expected.sum() == pytest.approx(1, abs=1e-4)
    assert np.abs(counts - expected).max() < 5 * np.sqrt(0.25 / 6000)


def test_stops(engine: NumpyEngine) -> None:
    weights = engine.weights(None)
    (free,) = engine.sample(weights, PROMPT, num_samples=1, max_tokens=20, seed=4)
    assert free.stop_reason == "length"
    (cut,) = engine.sample(weights, PROMPT, num_samples=1, max_tokens=20, seed=4, stop=[free.tokens[6]])
    first = free.tokens.index(free.tokens[6])
    assert (cut.tokens, cut.stop_reason) == (free.tokens[: first + 1], "stop")


@settings(max_examples=40, deadline=None)
@given(
    logits=st.lists(st.floats(-20, 20, width=32), min_size=2, max_size=8),
    uniform=st.floats(0, 1, exclude_max=True),
    top_k=st.integers(1, 8),
    top_p=st.floats(0.05, 1),
)
def test_cuts_keep_only_likely_tokens(logits: list[float], uniform: float, top_k: int, top_p: float) -> None:
    logits_V = np.array(logits, np.float32)
    probs = np.exp(logits_V.astype(np.float64) - logits_V.max())
    probs /= probs.sum()
    token = Choice(top_k=top_k).draw(logits_V, probs.astype(np.float32), uniform)
    assert np.count_nonzero(probs > probs[token] * (1 + 1e-5)) < top_k
    token = Choice(top_p=top_p).draw(logits_V, probs.astype(np.float32), uniform)
    assert probs[probs > probs[token] * (1 + 1e-5)].sum() < top_p + 1e-5
    token = Choice().draw(logits_V, probs.astype(np.float32), uniform)
    assert probs[token] > 0
