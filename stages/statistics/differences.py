"""The difference of two policies on the same examples: how large, how sure, and whether it is there at all."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from stages.statistics.intervals import LEVEL, RESAMPLES, Interval, paired_interval
from stages.statistics.signs import mcnemar_p, sign_flip_p


@dataclass(frozen=True)
class Difference(Interval):
    """Mean of a - b over the same examples with its paired bootstrap interval, and two-sided p-values of "none".

    Both p-values are of this one comparison: who looks often finds small ones.
    """

    sign_flip_p: float | None = None
    """None for a single example."""
    mcnemar_p: float | None = None
    """None unless all scores are 0 or 1, of one sample an example."""


def difference(
    a: Mapping[str, float],
    b: Mapping[str, float],
    seed: int,
    resamples: int = RESAMPLES,
    level: float = LEVEL,
) -> Difference:
    """Compare two policies by the scores of each example (see `example_means`).

    Raises:
        ValueError: when the two were not scored on the same examples, or as `mean_interval` does.
    """
    interval = paired_interval(a, b, seed, resamples, level)
    examples = sorted(a)
    return Difference(
        interval.estimate,
        interval.low,
        interval.high,
        interval.n,
        level,
        sign_flip_p([a[example] - b[example] for example in examples], seed) if interval.n > 1 else None,
        mcnemar_p([a[example] for example in examples], [b[example] for example in examples]),
    )
