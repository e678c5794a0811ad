"""Intervals over seeds: what a method gives when its dice are thrown again."""

from __future__ import annotations

import math
from collections.abc import Sequence

from stages.statistics import LEVEL, Interval


def seed_interval(values: Sequence[float], level: float = LEVEL) -> Interval:
    """Mean over seeds with Student's t interval; no ends for a single seed.

    Raises:
        ValueError: without values, or with one that is not finite.
    """
    if not values or not all(map(math.isfinite, values)):
        raise ValueError(f"a mean over seeds needs finite values, got {list(values)}")
    n = len(values)
    mean = math.fsum(values) / n
    if n == 1:
        return Interval(mean, None, None, 1, level)
    deviation = math.sqrt(math.fsum((value - mean) ** 2 for value in values) / (n - 1))
    half = t_quantile(n - 1, level) * deviation / math.sqrt(n)
    return Interval(mean, mean - half, mean + half, n, level)


def t_quantile(freedom: int, level: float) -> float:
    """The t for which Student's distribution lies within ±t with probability `level`, to 1e-9.

    Raises:
        ValueError: unless there is a degree of freedom and the level is within (0, 1).
    """
    if freedom < 1 or not 0 < level < 1:
        raise ValueError(f"expected at least 1 degree of freedom and a level in (0, 1), got {freedom} and {level}")
    low, high = 0.0, 1.0
    while _within(high, freedom) < level:
        high *= 2
    while high - low > 1e-9:
        middle = (low + high) / 2
        low, high = (middle, high) if _within(middle, freedom) < level else (low, middle)
    return high


def _within(t: float, freedom: int) -> float:
    """P(|T| < t) for whole degrees of freedom (Abramowitz and Stegun, 1964, 26.7.3 and 26.7.4)."""
    angle = math.atan(t / math.sqrt(freedom))
    sine, cosine = math.sin(angle), math.cos(angle)
    odd = freedom % 2
    term, total = (cosine, 0.0) if odd else (1.0, 0.0)
    for index in range(1 + odd, freedom, 2):
        total += term
        term *= cosine**2 * index / (index + 1)
    return 2 / math.pi * (angle + sine * total) if odd else sine * total
