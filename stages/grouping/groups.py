"""Groups as runs: members in their one total order, and exact integer sums over each run."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import polars as pl

from stages.grouping.load import Chunk
from stages.grouping.runs import Ints, Runs, order_of, runs_of

LIMIT = 2**62
"""Sums below this are kept in 64 bits, larger ones in 128: both are exact, so results do not depend on which."""


@dataclass(frozen=True)
class Members:
    """Candidate members of all groups of a chunk.

    Attributes:
        rows: sorted by (example, module, key, position, rollout, early): `row`, `r`, `q`, `early`, `copy`.
        runs: the rows of each group.
        groups: one row per group, in that order: `e`, `kind` (rank of module and key), `p`, and figures added later.
    """

    rows: pl.DataFrame
    runs: Runs
    groups: pl.DataFrame

    def with_groups(self, columns: pl.DataFrame) -> Members:
        """With columns added to `groups`, or replaced there."""
        return replace(self, groups=self.groups.with_columns(columns.get_columns()))

    def spread(self, column: str) -> pl.Series:
        """A column of `groups`, for every row."""
        values = self.groups.get_column(column)
        if values.dtype == pl.Int128:
            return values.gather(self.runs.of)
        return pl.Series(column, np.repeat(values.to_numpy(), self.runs.sizes))


def arrange(chunk: Chunk, members: pl.DataFrame) -> Members:
    """Bring candidate members into groups.

    Every (rollout, kind, position) has a *slot*: examples follow each other, within them kinds, positions, rollouts.
    A slot holds at most a member and an earlier attempt of it, so that slots order members without a tie.
    """
    places = chunk.kinds * chunk.positions
    r = members.get_column("r")
    first, size = (chunk.rollouts.get_column(name).gather(r).to_numpy() for name in ("first", "size"))
    kind, p = members.get_column("kind").to_numpy(), members.get_column("p").to_numpy()
    start = first * places + (kind * chunk.positions + p) * size
    keys = (start + r.to_numpy() - first) * 2 + members.get_column("early").to_numpy()
    order = order_of(keys, 2 * places * chunk.rollouts.height)
    begins = start[order]
    heads = np.flatnonzero(np.concatenate([begins[:1] >= 0, begins[1:] != begins[:-1]]))
    at = order[heads]
    groups = pl.DataFrame(
        {
            "e": chunk.rollouts.get_column("e").gather(r.gather(at)),
            "kind": kind[at],
            "p": p[at],
        }
    )
    rows = members.select("row", "r", "q", "early", "copy")[order]
    return Members(rows, runs_of(np.diff(heads, append=len(order))), groups)


def figures(members: Members, teacher: pl.Series | None) -> pl.DataFrame:
    """Per group, over its counted members (all but earlier attempts): `n`, `low`, `high`, `total`, `rollouts`.

    `total` is the sum of q. Before selection a rollout has one counted member in a group, so that `rollouts`, the
    counted members that are not a teacher's, is a number of distinct rollouts. Groups of earlier attempts alone have
    n = 0 and low = high = 0.

    Args:
        members: arranged members.
        teacher: per row whether a teacher made it; None where no teacher took part.
    """
    q, early = members.rows.get_column("q").to_numpy(), members.rows.get_column("early").to_numpy()
    counted = pl.Series(~early).cast(pl.Int64)
    n = members.runs.sum(counted)
    low, high, total = q, q, members.rows.get_column("q")
    if early.any():
        low, high = np.where(early, np.iinfo(np.int64).max, q), np.where(early, np.iinfo(np.int64).min, q)
        total = total * counted
    own = n if teacher is None else members.runs.sum(counted * (~teacher).cast(pl.Int64))
    some = (n > 0).to_numpy()
    return pl.DataFrame(
        {
            "n": n,
            "low": np.where(some, members.runs.least(low), 0),
            "high": np.where(some, members.runs.greatest(high), 0),
            "total": members.runs.sum(total),
            "rollouts": own,
        }
    )


def moments(members: Members, weights: Ints, most: int) -> pl.DataFrame:
    """Per group, with d = q - low and integer weights w: `n`, `s1`, `s2`, the sums of w, w d and w d^2. Exact.

    Args:
        members: arranged members, with `low` and `high` in `groups`.
        weights: how often each row counts.
        most: no group's weights add up to more than this or its size.
    """
    top = members.groups.select((pl.col("high") - pl.col("low")).max()).item() or 0
    largest = max(most, int(members.runs.sizes.max(initial=0)))
    kind = pl.Int128 if (int(top) * largest) ** 2 >= LIMIT else pl.Int64
    d = (members.rows.get_column("q") - members.spread("low")).cast(kind)
    w = pl.Series(weights)
    wd = w.cast(kind) * d
    return pl.DataFrame({"n": members.runs.sum(w), "s1": members.runs.sum(wd), "s2": members.runs.sum(wd * d)})
