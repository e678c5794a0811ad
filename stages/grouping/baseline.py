"""What advantages are measured against: exact sums for baseline and scale, per group."""

from __future__ import annotations

import numpy as np
import polars as pl

from stages.grouping.groups import Members, moments
from stages.grouping.load import Chunk
from stages.grouping.rules import Rules
from stages.grouping.runs import Ints


def baselines(members: Members, times: Ints, teacher: pl.Series | None, rules: Rules) -> tuple[Members, Ints]:
    """Add the sums that advantages need to groups.

    Args:
        members: with `low`, `high` in `groups`.
        times: how often each row stands in its group.
        teacher: per row whether a teacher made it; None where no teacher took part.
        rules: the recipe's rules.

    Returns:
        (members, counted). `groups` has gained `sn`, `s1`, `s2` (the sums of scale and baseline, over the student's
        counted members; where none was selected, over all of the student's), `bn`, `bs1` (the baseline's again), `tn`,
        `t1`, `t2` (over all counted members, teachers' included), `range` of all counted rewards and `thin`. `counted`
        says how often each row is in its group's baseline.
    """
    real = (~members.rows.get_column("early").to_numpy()).astype(np.int64)
    weight = real if rules.group.baseline_over == "all" else real * times
    every = moments(members, weight, rules.k)
    found, counted = every, weight
    if teacher is not None:
        student = (~teacher).to_numpy().astype(np.int64)
        counted = weight * student
        own, all_own = (moments(members, each, rules.k) for each in (counted, real * student))
        some = own.get_column("n") > 0
        found = own.select(own.get_column(name).zip_with(some, all_own.get_column(name)) for name in own.columns)
    sums = found.select(sn="n", s1="s1", s2="s2", bn="n", bs1="s1")
    sums = sums.with_columns(every.select(tn="n", t1="s1", t2="s2").get_columns())
    ranges = pl.Series("range", _ranges(members, weight, rules))
    return members.with_groups(sums.with_columns(ranges, thin=pl.lit(False))), counted


def _ranges(members: Members, weight: Ints, rules: Rules) -> Ints:
    """Largest minus smallest counted reward. Only `random` and K = 1 can leave a group's extremes out."""
    low, high = (members.groups.get_column(name).to_numpy() for name in ("low", "high"))
    if rules.group.baseline_over == "selected" and (rules.group.select == "random" or rules.k == 1):
        q, kept, of = members.rows.get_column("q").to_numpy(), weight > 0, members.runs.of
        low, high = members.runs.least(np.where(kept, q, high[of])), members.runs.greatest(np.where(kept, q, low[of]))
    found: Ints = np.maximum(high - low, 0)
    return found


def example_baselines(
    chunk: Chunk, rollouts: pl.DataFrame, members: Members, counted: Ints, rules: Rules
) -> tuple[Members, Ints]:
    """Give small groups the mean and deviation of their example's rollouts, where there are `min_group` of those.

    A rollout counts with what a sound call of the group's module is worth in it. Teachers and rollouts that are left
    out as a whole do not count. The member's own rollout does, also with `leave_one_rollout_out`.
    """
    if not chunk.modules:
        return members, counted
    live = rollouts.filter(pl.col("out").is_null(), ~pl.col("teacher"))
    tables = [
        _example_sums(live, f"carried:{module}" if module in rules.group.credit else "carried", code)
        for code, module in enumerate(chunk.modules)
    ]
    groups = members.groups.with_columns(m=(pl.col("kind") // len(chunk.keys)).cast(pl.Int64))
    joined = groups.join(pl.concat(tables), on=["e", "m"], how="left", maintain_order="left")
    thin = (pl.col("small") & (pl.col("n") > 0) & (pl.col("example_n") >= rules.group.min_group)).fill_null(False)
    shift = pl.col("example_n") * (pl.col("example_low") - pl.col("low"))
    values = {
        "sn": pl.col("example_n"),
        "s1": pl.col("example_s1"),
        "s2": pl.col("example_s2"),
        "bn": pl.col("example_n"),
        "bs1": pl.col("example_s1") + shift.cast(pl.Int128),
        "range": pl.col("example_high") - pl.col("example_low"),
    }
    found = joined.select(
        *(pl.when(thin).then(value).otherwise(pl.col(name)).alias(name) for name, value in values.items()),
        small=pl.col("small") & ~thin,
        thin=thin,
    )
    members = members.with_groups(found)
    return members, np.where(members.spread("thin").to_numpy(), 0, counted)


def _example_sums(live: pl.DataFrame, column: str, module: int) -> pl.DataFrame:
    """Per example: number, least, greatest, and exact sums over (value - least) of its rollouts' values."""
    low = pl.col(column).min()
    d = (pl.col(column) - low).cast(pl.Int128)
    return (
        live.filter(pl.col(column).is_not_null())
        .group_by("e")
        .agg(
            example_n=pl.len().cast(pl.Int64),
            example_low=low,
            example_high=pl.col(column).max(),
            example_s1=d.sum(),
            example_s2=(d * d).sum(),
        )
        .with_columns(m=pl.lit(module, dtype=pl.Int64))
    )
