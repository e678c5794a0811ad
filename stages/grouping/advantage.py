"""Advantages of a group's members, from exact integer sums.

With rewards in millionths and the group's smallest reward subtracted, n, the sum and the sum of squares are integers:
mean and variance are then the same whatever order, thread or engine added them up.
"""

from __future__ import annotations

import polars as pl

from schemas.recipe import GroupSection
from stages.grouping.rewards import MICRO


def group_numbers(members: pl.DataFrame) -> pl.DataFrame:
    """Members sorted by (example, module, position, rollout), with `group`, the dense number of their group."""
    ordered = members.sort("e", "m", "p", "r", "copy", "attempt", "row")
    return ordered.with_columns(group=pl.struct("e", "m", "p").rle_id())


def moments(members: pl.DataFrame) -> pl.DataFrame:
    """Per group, over the members that are in mean and std: `n`, `low`, `high`, `s1`, `s2`, and `std` sums.

    `s1` and `s2` are the sums of (q - low) and its square, as integers.
    """
    counted = members.lazy().filter(~pl.col("early"))
    shifted = counted.with_columns(d=(pl.col("q") - pl.col("q").min().over("group")).cast(pl.Int128))
    return (
        shifted.group_by("group", maintain_order=True)
        .agg(
            n=pl.len().cast(pl.Int64),
            low=pl.col("q").min(),
            high=pl.col("q").max(),
            s1=pl.col("d").sum(),
            s2=(pl.col("d") * pl.col("d")).sum(),
            rollouts=pl.col("r").n_unique(),
        )
        .collect()
    )


def with_advantages(members: pl.DataFrame, stats: pl.DataFrame, group: GroupSection) -> pl.DataFrame:
    """Members with `advantage`: (reward - mean) / (std + eps), exactly 0 where the group is flat."""
    n, s1, s2 = (pl.col(name).cast(pl.Int128) for name in ("n", "s1", "s2"))
    variance = (n * s2 - s1 * s1).cast(pl.Float64) / (pl.col("n") * (pl.col("n") - group.ddof)).cast(pl.Float64)
    std = variance.sqrt() / MICRO
    gap = (n * (pl.col("q") - pl.col("low")) - s1).cast(pl.Float64) / (pl.col("n") * MICRO).cast(pl.Float64)
    flat = (pl.col("high") - pl.col("low")) <= round(group.min_spread * MICRO)
    joined = members.join(stats, on="group", how="inner", maintain_order="left")
    return joined.with_columns(advantage=pl.when(flat).then(0.0).otherwise(gap / (std + group.eps)), flat=flat)
