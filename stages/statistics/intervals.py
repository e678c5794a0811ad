"""How sure a mean is: bootstrap intervals over examples, for one policy and for the difference of two.

The unit of resampling is the example, whose samples are averaged first (`means.py`). An interval over examples speaks
for this adapter on examples like these. It says nothing about another training seed: a claim about a method needs runs
with several seeds.

Intervals are percentile intervals of the nonparametric bootstrap (Efron and Tibshirani, 1993, chapter 13). They are
a little short for few examples (a nominal 95 % interval over 20 examples covers about 92 %).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from schemas.canonical import seed_from

RESAMPLES = 10_000
LEVEL = 0.95
_DRAWS = 1 << 20
"""Indices drawn at a time: bounds memory to some 16 MB whatever the number of examples."""


@dataclass(frozen=True)
class Interval:
    """An estimate and its percentile interval over `n` examples.

    `low` and `high` are None for a single example, which says nothing about its own spread. When all examples are
    equal, both are exactly the estimate: the bootstrap sees no spread, although a larger set might show some.
    """

    estimate: float
    low: float | None
    high: float | None
    n: int
    level: float = LEVEL

    @property
    def above_zero(self) -> bool:
        """Whether the whole interval lies above 0."""
        return self.low is not None and self.low > 0

    @property
    def below_zero(self) -> bool:
        """Whether the whole interval lies below 0."""
        return self.high is not None and self.high < 0


def bootstrap_seed(run_seed: int) -> int:
    """The seed of a run's intervals, the same wherever they are shown: equal scores give equal intervals."""
    return seed_from("bootstrap", run_seed)


def mean_interval(
    values: Mapping[str, float] | Sequence[float],
    seed: int,
    resamples: int = RESAMPLES,
    level: float = LEVEL,
) -> Interval:
    """Mean over examples with its percentile bootstrap interval.

    Args:
        values: one number per example (see `example_means`), by example_id or plain; their order does not matter.
        seed: equal values and an equal seed give an equal interval.
        resamples: number of bootstrap resamples.
        level: coverage that is aimed at, in (0, 1).

    Raises:
        ValueError: without values, with a value that is not finite, or with a level outside (0, 1).
    """
    if not 0.0 < level < 1.0 or resamples < 1:
        raise ValueError(f"expected a level in (0, 1) and at least 1 resample, got {level} and {resamples}")
    plain = values.values() if isinstance(values, Mapping) else values
    # Resampling is exchangeable, so sorting changes nothing but makes the result independent of row order.
    ordered = np.sort(np.asarray(list(plain), dtype=np.float64))
    if ordered.size == 0:
        raise ValueError("a mean needs at least one example, got none")
    if not np.isfinite(ordered).all():
        raise ValueError(f"{int((~np.isfinite(ordered)).sum())} of {ordered.size} values are not finite")
    if ordered[0] == ordered[-1]:
        same = float(ordered[0])
        known = ordered.size > 1
        return Interval(same, same if known else None, same if known else None, ordered.size, level)
    means = _resampled_means(ordered, seed, resamples)
    low, high = np.quantile(means, [(1 - level) / 2, (1 + level) / 2])
    return Interval(math.fsum(ordered) / ordered.size, float(low), float(high), ordered.size, level)


def paired_interval(
    a: Mapping[str, float],
    b: Mapping[str, float],
    seed: int,
    resamples: int = RESAMPLES,
    level: float = LEVEL,
) -> Interval:
    """Mean of a − b over the same examples, with its percentile bootstrap interval.

    Each example keeps its pair: what makes an example easy or hard for both cancels out, which an interval around
    each mean alone would not show.

    Raises:
        ValueError: when the two were not scored on the same examples, or as `mean_interval` does.
    """
    if a.keys() != b.keys():
        only = len(a.keys() - b.keys()), len(b.keys() - a.keys())
        raise ValueError(
            f"a pair needs the same examples on both sides: {only[0]} are only in the first, "
            f"{only[1]} only in the second"
        )
    return mean_interval([a[example] - b[example] for example in sorted(a)], seed, resamples, level)


def _resampled_means(values: NDArray[np.float64], seed: int, resamples: int) -> NDArray[np.float64]:
    """Means of `resamples` draws of len(values) items with replacement, shape (resamples,)."""
    generator = np.random.default_rng(seed)
    size = values.size
    rows = max(1, _DRAWS // size)
    blocks = [
        values[generator.integers(0, size, size=(min(rows, resamples - start), size))].mean(axis=1)
        for start in range(0, resamples, rows)
    ]
    return np.concatenate(blocks)
