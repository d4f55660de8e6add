"""Scaling, the zero filter, depth weights and update metrics against hand-made sums."""

from __future__ import annotations

import math
import statistics

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from platoon.credit import Datum
from platoon.credit.depth import (
    DepthError,
    apply_depth_discount,
    apply_depth_weighting,
    depth_level_weights,
    depth_metrics,
)
from platoon.credit.loss import (
    all_advantages_zero,
    filter_zero_advantages,
    mean_over_microbatches,
    optimizer_metrics,
    scale_microbatch,
    short_factor,
    zero_at_zero_advantages,
)


def datum(
    advantages: list[float],
    mask: list[float] | None = None,
    *,
    depth: int = 0,
    start: float = 1.0,
    logprob: float = -1.0,
) -> Datum:
    count = len(advantages)
    return Datum(
        tokens_T=np.arange(count, dtype=np.int32),
        targets_T=np.arange(1, count + 1, dtype=np.int32),
        logprobs_T=np.full(count, logprob, np.float32),
        advantages_T=np.array(advantages, np.float32),
        mask_T=np.array(mask if mask is not None else [1.0] * count, np.float32),
        version=0,
        depth=depth,
        traj_start=start,
    )


def mass(datums: list[Datum]) -> float:
    return sum(float(np.abs(d.advantages_T).sum()) for d in datums)


def test_a_microbatch_is_a_mean_over_its_action_tokens() -> None:
    scaled = scale_microbatch([datum([0.0, 2.0, 2.0], [0, 1, 1]), datum([1.0, 1.0])])
    assert scaled[0].advantages_T.tolist() == [0.0, 0.5, 0.5]
    assert scaled[1].advantages_T.tolist() == [0.25, 0.25]


def test_a_short_microbatch_is_not_inflated() -> None:
    assert [short_factor(admitted, 4) for admitted in (0, 1, 3, 4, 5)] == [4.0, 4.0, 4 / 3, 1.0, 1.0]
    assert scale_microbatch([datum([1.0, 1.0])], 2 * short_factor(1, 4))[0].advantages_T.tolist() == [0.125, 0.125]


def test_the_zero_filter_keeps_the_denominator() -> None:
    silent = datum([0.0, 0.0, 0.0])
    context_only = datum([1.0, 0.0], [0, 1])
    tiny, undefined = datum([1e-45, 0.0]), datum([math.nan])
    found = filter_zero_advantages([silent, context_only, tiny, undefined, datum([5.0], [0.0])])
    assert found.kept == [tiny, undefined]
    assert found.normalization_tokens == 7
    assert found.stats["zero_advantage_filter/filtered_datums"] == 3
    assert found.stats["zero_advantage_filter/filtered_loss_tokens"] == 4
    assert found.stats["zero_advantage_filter/retained_attention_tokens"] == 3
    assert scale_microbatch([datum([7.0])], found.normalization_tokens)[0].advantages_T.tolist() == [1.0]
    assert all_advantages_zero([silent, datum([-0.0])])
    assert not all_advantages_zero([silent, undefined])


@pytest.mark.parametrize(
    ("loss", "config", "answer"),
    [
        ("cispo", {"clip_low_threshold": 0.0}, True),
        ("ppo", {}, True),
        ("importance_sampling", None, True),
        ("ppo", {"kl_coef": 0.1}, False),
        ("dro", {}, False),
    ],
)
def test_losses_that_are_zero_at_zero_advantages(loss: str, config: dict[str, float] | None, answer: bool) -> None:
    assert zero_at_zero_advantages(loss, config) is answer


def test_depth_levels_count_alike() -> None:
    datums = [
        datum([1.0] * 6),
        datum([1.0] * 2, depth=1),
        datum([1.0] * 2, depth=1),
        datum([1.0] * 2, depth=1, start=0),
    ]
    # c = {0: 1, 1: 2}, t = {0: 6, 1: 6}: total 12, sum of t/c 6 + 3.
    assert depth_level_weights(datums) == pytest.approx({0: 12 / 9, 1: 0.5 * 12 / 9})
    weighted = apply_depth_weighting(datums)
    assert mass(weighted) == pytest.approx(mass(datums), rel=1e-6)
    metrics = depth_metrics(datums, weighted)
    assert metrics["credit/max_depth"] == 1
    assert metrics["credit/depth1/trajectories"] == 2
    assert metrics["credit/depth1/datums"] == 3
    assert metrics["credit/depth1/weight"] == pytest.approx(6 / 9)
    with pytest.raises(DepthError):
        apply_depth_weighting([datum([1.0], start=0.0)])
    with pytest.raises(DepthError):
        apply_depth_weighting([datum([1.0], [0.0])])


@settings(max_examples=50, deadline=None)
@given(st.lists(st.tuples(st.integers(1, 9), st.integers(0, 3)), min_size=1, max_size=6), st.floats(0.1, 2.0))
def test_a_discount_keeps_the_total(sizes: list[tuple[int, int]], gamma: float) -> None:
    datums = [datum([1.0] * size, depth=depth) for size, depth in sizes]
    found = apply_depth_discount(datums, gamma)
    assert mass(found) == pytest.approx(mass(datums), rel=1e-5)
    factor = float(found[0].advantages_T[0]) / gamma ** datums[0].depth
    assert [float(d.advantages_T[0]) for d in found] == pytest.approx(
        [factor * gamma**d.depth for d in datums], rel=1e-5
    )


def test_no_action_tokens_give_no_discount() -> None:
    with pytest.raises(DepthError):
        apply_depth_discount([datum([1.0], [0.0])], 0.5)


def test_update_metrics() -> None:
    first, second = datum([1.0, 1.0], [0, 1], logprob=-1.0), datum([1.0], logprob=-2.0)
    trained = [np.array([9.0, -1.5], np.float32), np.array([0.0], np.float32)]
    found = optimizer_metrics(
        [first, second], trained, "cispo", {"clip_low_threshold": 0.7, "clip_high_threshold": 5.0}
    )
    deltas = [0.5, -2.0]
    weights = [math.exp(-d) for d in deltas]
    assert found["optim/kl_sample_train_v1"] == pytest.approx(-0.75)
    assert found["optim/kl_sample_train_v2"] == pytest.approx(0.5 * (0.25 + 4) / 2)
    assert found["optim/entropy"] == pytest.approx(1.5)
    assert found["optim/importance_weight_std"] == pytest.approx(statistics.stdev(weights))
    assert (found["optim/clip_frac_low"], found["optim/clip_frac_high"]) == (0.5, 0.5)
    assert found["optim/clip_frac_total"] == 1.0
    one = optimizer_metrics([second], trained[1:], "importance_sampling", None)
    assert math.isnan(one["optim/importance_weight_std"])
    assert "optim/clip_frac_low" not in one
    assert optimizer_metrics([datum([1.0], [0.0])], trained[1:], "ppo", None) == {}
    with pytest.raises(ValueError, match="2 logprobs for 1 targets"):
        optimizer_metrics([second], trained[:1], "ppo", None)
    assert mean_over_microbatches([{"a": 1.0}, {"a": 3.0, "b": 2.0}]) == {"a": 2.0}
    assert mean_over_microbatches([]) == {}
