"""Two tests of "no difference" that need no distribution: sign flips, and McNemar's for scores of 0 and 1."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

FLIPS = 10_000
EXACT_UP_TO = 18
"""Differences that are not 0, up to which all 2^n signs are tried: 2 MB, some milliseconds."""
_DRAWS = 1 << 20


def sign_flip_p(differences: Sequence[float], seed: int, flips: int = FLIPS) -> float:
    """Two-sided p-value of the paired permutation test: how often random signs give a mean as far from 0.

    Swapping the two policies of an example flips its difference's sign; where they do not differ, either sign is as
    likely. Exact for few examples, and where all differences have one size (a binomial count); else the share of
    `flips` seeded draws, the data counted as one of them, so that it is never 0.

    Args:
        differences: one number per example, whatever the order.
        seed: of the draws.
        flips: number of draws.
    """
    moved = np.sort(np.asarray([value for value in differences if value], dtype=np.float64))
    if moved.size == 0:
        return 1.0
    sizes = np.abs(moved)
    if np.ptp(sizes) <= 1e-12 * sizes.max():
        return _binomial_p(int((moved > 0).sum()), moved.size)
    observed = abs(math.fsum(moved)) - 1e-9 * float(sizes.sum())  # sums of the same numbers differ in their last bits
    if moved.size <= EXACT_UP_TO:
        return float((np.abs(_all_sums(sizes)) >= observed).mean())
    hits = sum(int((np.abs(sums) >= observed).sum()) for sums in _drawn_sums(sizes, seed, flips))
    return (1 + hits) / (1 + flips)


def mcnemar_p(a: Sequence[float], b: Sequence[float]) -> float | None:
    """Exact two-sided p-value of McNemar's test, or None where a score is neither 0 nor 1.

    Of the examples that only one of the two got right, either is as likely to be the one.

    Args:
        a: scores, one sample an example.
        b: the other policy's, of the same examples in the same order.
    """
    if not set(a) <= {0.0, 1.0} or not set(b) <= {0.0, 1.0}:
        return None
    pairs = list(zip(a, b, strict=True))
    gained = sum(first > second for first, second in pairs)
    return _binomial_p(gained, gained + sum(first < second for first, second in pairs))


def _binomial_p(hits: int, n: int) -> float:
    """Two-sided p-value of `hits` of `n` fair coins: twice the smaller tail, at most 1. Exact, by whole numbers."""
    fewer = min(hits, n - hits)
    term = total = 1
    for i in range(fewer):
        term = term * (n - i) // (i + 1)
        total += term
    return min(1.0, 2 * total / (1 << n))


def _all_sums(sizes: NDArray[np.float64]) -> NDArray[np.float64]:
    """Sums under every choice of signs, shape (2^n,)."""
    sums = np.zeros(1)
    for size in sizes:
        sums = np.concatenate([sums + size, sums - size])
    return sums


def _drawn_sums(sizes: NDArray[np.float64], seed: int, flips: int) -> list[NDArray[np.float64]]:
    generator = np.random.default_rng(seed)
    rows = max(1, _DRAWS // sizes.size)
    return [
        (2.0 * generator.integers(0, 2, size=(min(rows, flips - start), sizes.size), dtype=np.int8) - 1.0) @ sizes
        for start in range(0, flips, rows)
    ]
