"""Runs of equal numbers in a sorted column, and integer arithmetic over each."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import polars as pl

Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class Runs:
    """Consecutive rows of equal value: where each run starts, how long it is, and the run of every row."""

    starts: Ints
    sizes: Ints
    of: Ints

    def sum(self, flag: Bools) -> Ints:
        """Flagged rows of each run."""
        ahead: Ints = np.concatenate([[0], np.cumsum(flag)])
        found: Ints = ahead[self.starts + self.sizes] - ahead[self.starts]
        return found

    def rank(self, flag: Bools) -> Ints:
        """For each row, the flagged rows of its run before it."""
        ahead: Ints = np.cumsum(flag) - flag
        found: Ints = ahead - ahead[self.starts][self.of]
        return found


def runs_of(column: pl.Series) -> Runs:
    """The runs of a column in which equal values stand together."""
    sizes = column.rle().struct.field("len").to_numpy().astype(np.int64)
    return Runs(np.cumsum(sizes) - sizes, sizes, np.repeat(np.arange(len(sizes)), sizes))
