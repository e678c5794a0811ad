"""Groups as runs: members in their one total order, and exact integer sums over each run."""

from __future__ import annotations

from dataclasses import dataclass, replace

import polars as pl

from stages.grouping.load import Chunk

LIMIT = 2**62
"""Sums below this are kept in 64 bits, larger ones in 128: both are exact, so results do not depend on which."""


@dataclass(frozen=True)
class Members:
    """Candidate members of all groups of a chunk.

    Attributes:
        rows: sorted by (example, module, key, position, rollout, early), with `gid`, the dense number of the group.
        groups: one row per group, in that order: `gid`, `size` (rows), `e`, `kind` (rank of module and key) and `p`.
    """

    rows: pl.DataFrame
    groups: pl.DataFrame

    def with_groups(self, columns: pl.DataFrame) -> Members:
        """With columns added to `groups`, or replaced there."""
        return replace(self, groups=self.groups.with_columns(columns.get_columns()))


def arrange(chunk: Chunk, members: pl.DataFrame) -> Members:
    """Bring members into groups: one sort by one integer.

    Every (rollout, kind, position) has a *slot*: examples follow each other, within them kinds, positions, rollouts.
    """
    kinds = chunk.lanes * chunk.positions
    of = chunk.rollouts.select("first", "size", "e")
    r = members.get_column("r")
    frame = members.with_columns(of.get_column("first").gather(r), of.get_column("size").gather(r))
    place = pl.col("lane") % chunk.lanes * chunk.positions + pl.col("p")
    frame = frame.with_columns(group=pl.col("first") * kinds + place * pl.col("size"))
    key = (pl.col("group") + pl.col("r") - pl.col("first")) * 2 + pl.col("early")
    order = frame.select(key).to_series().arg_sort()
    frame = frame.select("row", "r", "q", "early", "copy", "group", "lane", "p")[order]
    runs = frame.get_column("group").rle().struct.field("len")
    starts = runs.cum_sum() - runs
    heads = frame[starts].select("r", "lane", "p")
    groups = heads.select(
        gid=pl.int_range(pl.len(), dtype=pl.UInt32),
        size=runs,
        e=of.get_column("e").gather(heads.get_column("r")),
        kind=pl.col("lane") % chunk.lanes,
        p="p",
    )
    rows = frame.select("row", "r", "q", "early", "copy", gid=pl.col("group").rle_id())
    return Members(rows, groups)


def spread(members: Members, teacher: pl.Series | None) -> pl.DataFrame:
    """Per group, over its counted members (all but earlier attempts): `n`, `low`, `high`, `total`, `rollouts`.

    `total` is the sum of q. Before selection a rollout has one counted member in a group, so that `rollouts`, the
    counted members that are not a teacher's, is a number of distinct rollouts. Groups of earlier attempts alone have
    n = 0 and null `low` and `high`.

    Args:
        members: arranged members.
        teacher: per row whether a teacher made it; None where no teacher took part.
    """
    counted = pl.when(~pl.col("early")).then("q")
    frame = members.rows.lazy().select("gid", q=counted)
    rollouts = pl.col("q").count()
    if teacher is not None:
        frame = frame.with_columns(own=~teacher & pl.col("q").is_not_null())
        rollouts = pl.col("own").sum()
    found = frame.group_by("gid", maintain_order=True).agg(
        n=pl.col("q").count().cast(pl.Int64),
        low=pl.col("q").min(),
        high=pl.col("q").max(),
        total=pl.col("q").sum(),
        rollouts=rollouts.cast(pl.Int64),
    )
    return found.collect().drop("gid")


def moments(members: Members, weights: pl.Series, most: int) -> pl.DataFrame:
    """Per group, with d = q - low and integer weights w: `n`, `s1`, `s2`, the sums of w, w d and w d^2. Exact.

    Args:
        members: arranged members, with `low` and `high` in `groups`.
        weights: how often each row counts.
        most: no group's weights add up to more than this or its size.
    """
    groups = members.groups
    top = groups.select((pl.col("high") - pl.col("low")).max()).item() or 0
    largest = max(most, groups.select(pl.col("size").max()).item() or 0)
    kind = pl.Int128 if (int(top) * int(largest)) ** 2 >= LIMIT else pl.Int64
    low = groups.get_column("low").gather(members.rows.get_column("gid"))
    frame = members.rows.select("gid", w=weights, d=(pl.col("q") - low).cast(kind))
    frame = frame.select("gid", "w", wd=pl.col("w") * pl.col("d"), wdd=pl.col("w") * pl.col("d") * pl.col("d"))
    found = (
        frame.lazy()
        .group_by("gid", maintain_order=True)
        .agg(n=pl.col("w").sum(), s1=pl.col("wd").sum(), s2=pl.col("wdd").sum())
    )
    return found.collect().drop("gid")
