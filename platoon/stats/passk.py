"""Chances under a Beta(alpha, beta) belief on a task's pass rate."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Vector = npt.NDArray[np.float64]
Counts = npt.NDArray[np.int64]
PASS_BANDS = ("zero", "low", "mid", "high", "solved")


def pass_at(alpha: float, beta: float, k: int) -> float:
    """Expected chance that at least one of k attempts passes: 1 - prod_{i<k} (beta + i) / (alpha + beta + i)."""
    return 1.0 - _all_alike(beta, alpha + beta, k)


def informative_at(alpha: float, beta: float, k: int) -> float:
    """Expected chance that k attempts neither all pass nor all fail; 0 for one attempt."""
    return max(0.0, pass_at(alpha, beta, k) - _all_alike(alpha, alpha + beta, k))


def bands(rate_N: Vector) -> Counts:
    """Number in `PASS_BANDS` of each pass rate: zero <= 0.05 < low <= 0.2 < mid < 0.8 <= high < 0.95 <= solved."""
    found: Counts = np.sum((rate_N > 0.05, rate_N > 0.2, rate_N >= 0.8, rate_N >= 0.95), axis=0, dtype=np.int64)
    return found


def _all_alike(hits: float, total: float, k: int) -> float:
    product = 1.0
    for i in range(k):
        product *= (hits + i) / (total + i)
    return product


def pass_at_array(alpha_N: Vector, beta_N: Vector, k_N: Counts) -> Vector:
    """`pass_at` of many tasks at once: float64[N]."""
    total_N, product_N = alpha_N + beta_N, np.ones(len(alpha_N))
    for i in range(int(k_N.max(initial=0))):
        product_N = np.where(i < k_N, product_N * ((beta_N + i) / (total_N + i)), product_N)
    return 1.0 - product_N
