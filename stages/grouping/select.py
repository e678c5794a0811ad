"""SelectKDiverseElements (mmGRPO, arXiv 2508.04660): exactly K members of greatest reward variance.

For n > K the best K of n sorted rewards are the j lowest and the K - j highest, for some j: variance is convex in each
element, so moving a chosen element outwards never lowers it. For n < K every member is kept once and every extra
copy, by the same convexity, is of the smallest or the largest reward. Both searches are exact, in integers.
"""

from __future__ import annotations

import polars as pl

from stages.grouping.pad import SELECT


def max_variance(members: pl.DataFrame, stats: pl.DataFrame, k: int) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Choose K of each group's counted members (earlier attempts ride along).

    Args:
        members: all members with their `group`.
        stats: `moments` of the groups.
        k: members wanted.

    Returns:
        (selected, left): members in and out of the selection.
    """
    small = stats.filter(pl.col("n") < k)
    large = stats.filter(pl.col("n") > k)
    added = _extra_copies(members, small, k)
    left = _outermost(members, large, k)
    kept = members.join(left.select("group", "row", "copy"), on=["group", "row", "copy"], how="anti")
    return pl.concat([kept, added]), left


def _extra_copies(members: pl.DataFrame, small: pl.DataFrame, k: int) -> pl.DataFrame:
    """K - n copies of the smallest and the largest reward, as many of each as make the variance largest.

    With M the range and T the sum of (q - low), adding b copies of the largest changes K^2 times the variance by
    M[(K - 2b + 1)M - 2T] at the b-th: the best b is the last at which that is not negative. Ties go to the largest.
    Copies go round the members of that reward: originals before fill copies, then in order of rollout.
    """
    spread = pl.col("high") - pl.col("low")
    best = ((k + 1) * spread - 2 * pl.col("s1")).floordiv(2 * pl.when(spread == 0).then(1).otherwise(spread))
    plan = small.select(
        "group",
        "low",
        "high",
        extra=k - pl.col("n"),
        top=best.clip(0, k - pl.col("n")).cast(pl.Int64),
    )
    counted = members.filter(~pl.col("early")).join(plan, on="group", how="inner", maintain_order="left")
    ends = pl.concat(
        [
            counted.filter(pl.col("q") == pl.col("low")).with_columns(times=pl.col("extra") - pl.col("top"), end=0),
            counted.filter(pl.col("q") == pl.col("high")).with_columns(times=pl.col("top"), end=1),
        ]
    )
    pool = ends.filter(pl.col("copy") == pl.col("copy").min().over("group", "end"))
    pool = pool.with_columns(
        i=pl.int_range(pl.len()).over("group", "end", order_by=["r"]), size=pl.len().over("group", "end")
    )
    turns = (pl.col("times") - pl.col("i") + pl.col("size") - 1).floordiv(pl.col("size").cast(pl.Int64)).clip(0)
    pool = pool.with_columns(turns=turns).filter(pl.col("turns") > 0)
    rows = pool.select(pl.int_range(pl.len()).repeat_by(pl.col("turns")).explode()).to_series()
    return pool[rows].with_columns(copy=pl.lit(SELECT, dtype=pl.UInt8)).select(members.columns)


def _outermost(members: pl.DataFrame, large: pl.DataFrame, k: int) -> pl.DataFrame:
    """The members of groups with n > K that the best j lowest and K - j highest leave out."""
    counted = members.lazy().filter(~pl.col("early"))
    ranked = (
        counted.join(large.lazy().select("group", "n", "low"), on="group", how="inner")
        .sort("group", "q", "copy", "r")
        .with_row_index("at")
        .with_columns(
            first=pl.col("at").first().over("group"),
            block=pl.col("at").first().over("group", "q"),
            width=pl.len().over("group", "q"),
            d=(pl.col("q") - pl.col("low")).cast(pl.Int128),
        )
        .with_columns(
            i=pl.col("at") - pl.col("first"), c1=pl.col("d").cum_sum(), c2=(pl.col("d") * pl.col("d")).cum_sum()
        )
        .collect()
    )
    cuts = _best_cut(ranked, k)
    below = pl.col("block") - pl.col("first")
    above = pl.col("n") - below - pl.col("width")
    low = (pl.col("j") - below.cast(pl.Int64)).clip(0, pl.col("width"))
    high = (k - pl.col("j") - above.cast(pl.Int64)).clip(0, pl.col("width"))
    ranked = ranked.join(cuts, on="group", how="inner", maintain_order="left")
    return ranked.filter((pl.col("at") - pl.col("block")).cast(pl.Int64) >= low + high).select(members.columns)


def _best_cut(ranked: pl.DataFrame, k: int) -> pl.DataFrame:
    """Per group the smallest j whose j lowest and K - j highest have the largest variance."""
    sums = ranked.select("c1", "c2", e1=pl.col("c1") - pl.col("d"), e2=pl.col("c2") - pl.col("d") * pl.col("d"))
    starts = ranked.filter(pl.col("i") <= k)
    end = starts.get_column("first") + starts.get_column("n") - 1
    tail = end - k + starts.get_column("i")
    at = starts.get_column("at"), starts.get_column("first")
    parts = {
        f"{name}{power}": sums.get_column(f"{kind}{power}").gather(rows)
        for power in (1, 2)
        for name, kind, rows in (("below", "e", at[0]), ("from", "e", at[1]), ("all", "c", end), ("upto", "c", tail))
    }
    t1, t2 = (
        pl.col(f"below{power}") - pl.col(f"from{power}") + pl.col(f"all{power}") - pl.col(f"upto{power}")
        for power in (1, 2)
    )
    best = starts.select("group", j=pl.col("i").cast(pl.Int64)).with_columns(**parts)
    best = best.with_columns(value=t2 * pl.lit(k, dtype=pl.Int128) - t1 * t1)
    return (
        best.filter(pl.col("value") == pl.col("value").max().over("group"))
        .group_by("group", maintain_order=True)
        .agg(pl.col("j").min())
    )
