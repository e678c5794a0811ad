"""Runs of rows that belong together in a sorted table, and exact integer arithmetic over each."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import polars as pl

Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]
SPARSE = 16
"""A table of this many entries a row is still filled faster than rows are sorted."""


@dataclass(frozen=True)
class Runs:
    """Consecutive rows that belong together: where each run starts, its length, and the run of every row."""

    starts: Ints
    sizes: Ints
    of: npt.NDArray[np.int32]

    def sum(self, values: pl.Series) -> pl.Series:
        """Sums over runs, exact, of the values' own integer type."""
        if values.dtype != pl.Int128:
            return pl.Series(np.add.reduceat(values.to_numpy(), self.starts) if len(self.starts) else values[:0])
        running = values.cum_sum()
        ends = running.gather(self.starts + self.sizes - 1)
        return ends - ends.shift(1, fill_value=0)

    def count(self, flag: pl.Series) -> pl.Series:
        """Flagged rows of each run: quick where they are few."""
        return pl.Series(np.bincount(self.of[flag.arg_true().to_numpy()], minlength=len(self.starts)))

    def least(self, values: Ints) -> Ints:
        """The smallest value of each run."""
        found: Ints = np.minimum.reduceat(values, self.starts) if len(self.starts) else values[:0]
        return found

    def greatest(self, values: Ints) -> Ints:
        """The largest value of each run."""
        found: Ints = np.maximum.reduceat(values, self.starts) if len(self.starts) else values[:0]
        return found


def runs_of(sizes: npt.NDArray[np.integer]) -> Runs:
    """Runs of the given lengths."""
    lengths = sizes.astype(np.int64)
    return Runs(np.cumsum(lengths) - lengths, lengths, np.repeat(np.arange(len(lengths), dtype=np.int32), lengths))


def column_runs(column: pl.Series) -> Runs:
    """The runs of equal values of a column."""
    return runs_of(column.rle().struct.field("len").to_numpy())


def rank_within(of: npt.NDArray[np.integer], groups: int) -> tuple[Ints, Ints]:
    """For rows sorted by group: each row's rank in its group, and the rows of every group."""
    sizes: Ints = np.bincount(of, minlength=groups)
    return np.arange(len(of)) - (np.cumsum(sizes) - sizes)[of], sizes


def order_of(keys: Ints, size: int) -> Ints:
    """The order that sorts distinct keys below `size`: by filling a table where it is small enough, else by sorting."""
    if size > SPARSE * len(keys) + 1024:
        return np.argsort(keys, kind="stable")
    table = np.full(size, -1, dtype=np.int32)
    table[keys] = np.arange(len(keys), dtype=np.int32)
    found: Ints = table[table >= 0].astype(np.int64)
    return found


def compact(keys: Ints, size: int) -> tuple[Ints, Ints]:
    """Keys below `size` as places in a table of moderate length, and the key of each place, rising.

    The keys themselves where the table is not much longer than the keys are many, else their ranks.
    """
    if size <= SPARSE * len(keys) + 1024:
        return keys, np.arange(size)
    values, ranks = np.unique(keys, return_inverse=True)
    return ranks.astype(np.int64), values


def greatest_by(keys: Ints, values: npt.NDArray[np.integer], size: int) -> Ints:
    """For each key below `size` the greatest of its values, -1 where it has none. Quick where they rise."""
    found = np.full(size, -1, dtype=np.int64)
    found[keys] = values
    if (found[keys] < values).any():
        np.maximum.at(found, keys, values)
    return found
