"""How sure a score is, and a difference of scores: numpy only, seeded, the same whatever the order of rows."""

from stages.statistics.bound import lower_bound, tail
from stages.statistics.differences import Difference, difference
from stages.statistics.intervals import (
    LEVEL,
    RESAMPLES,
    Interval,
    bootstrap_seed,
    mean_interval,
    paired_interval,
)
from stages.statistics.means import example_means
from stages.statistics.signs import mcnemar_p, sign_flip_p
from stages.statistics.spending import alpha_of

__all__ = [
    "LEVEL",
    "RESAMPLES",
    "Difference",
    "Interval",
    "alpha_of",
    "bootstrap_seed",
    "difference",
    "example_means",
    "lower_bound",
    "mcnemar_p",
    "mean_interval",
    "paired_interval",
    "sign_flip_p",
    "tail",
]
