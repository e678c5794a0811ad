"""The exact search for the K of n > K members of greatest reward variance: j lowest and K - j highest."""

from __future__ import annotations

import numpy as np
import polars as pl

from stages.grouping.groups import Members
from stages.grouping.load import Chunk
from stages.grouping.rules import Rules
from stages.grouping.runs import Ints, column_runs


def keep_outermost(chunk: Chunk, members: Members, at: Ints, rules: Rules) -> tuple[Ints, Ints]:
    """Rows and whether each is kept (0 or 1).

    Within a run of equal rewards (a block) the low end takes some and the high end takes some; which rows those are
    is decided by preference alone: originals first, then rollout order.
    """
    k = rules.k
    ranked = _ranked(members, at)
    cuts = _best_cut(ranked, k)
    ranked = ranked.join(cuts, on="gid", how="inner", maintain_order="left")
    above = pl.col("n") - pl.col("below") - pl.col("width")
    low = (pl.col("j") - pl.col("below")).clip(0, pl.col("width"))
    high = (k - pl.col("j") - above).clip(0, pl.col("width"))
    kept = ranked.select("at", times=(pl.col("i") - pl.col("below") < low + high).cast(pl.Int64))
    return kept.get_column("at").to_numpy(), kept.get_column("times").to_numpy()


def _ranked(members: Members, at: Ints) -> pl.DataFrame:
    """Rows sorted by reward within their group, with running sums and what is known of each block of equal rewards.

    Adds `i` (rank in the group), `first` (row where the group starts), `below` (ranks below the block), `width` and
    `originals` (of the block), `copies` (in the ranks below the block), `all_copies` (in the group), and the running
    sums `c1`, `c2` of d = q - low and its square over the whole frame.
    """
    of = members.runs.of[at]
    rows = members.rows.select("q", "copy")[at].hstack(members.groups.select("n", "low")[of])
    rows = rows.with_columns(at=pl.Series(at), gid=pl.Series(of)).sort("gid", "q", "copy", "at")
    groups = column_runs(rows.get_column("gid"))
    blocks = column_runs(rows.select(pl.struct("gid", "q").rle_id()).to_series())
    copied = (rows.get_column("copy") != 0).cast(pl.Int64)
    made = (copied.cum_sum() - copied).to_numpy()
    i = np.arange(rows.height) - groups.starts[groups.of]
    heads = blocks.starts[blocks.of]
    copies = blocks.sum(copied).to_numpy()[blocks.of]
    width = blocks.sizes[blocks.of]
    d = (rows.get_column("q") - rows.get_column("low")).cast(pl.Int128)
    return rows.with_columns(
        i=pl.Series(i),
        first=pl.Series(groups.starts[groups.of]),
        below=pl.Series(i[heads]),
        width=pl.Series(width),
        originals=pl.Series(width - copies),
        copies=pl.Series(made[heads] - made[groups.starts][groups.of]),
        all_copies=groups.sum(copied).gather(groups.of),
        d=d,
        c1=d.cum_sum(),
        c2=(d * d).cum_sum(),
    )


def _best_cut(ranked: pl.DataFrame, k: int) -> pl.DataFrame:
    """Per group the best j: greatest variance, then fewest copies, then smallest j (most high rewards)."""
    ranked = ranked.with_columns(e1=pl.col("c1") - pl.col("d"), e2=pl.col("c2") - pl.col("d") * pl.col("d"))
    cuts = ranked.filter(pl.col("i") <= k)
    end = cuts.get_column("first") + cuts.get_column("n") - 1
    rest = end - k + cuts.get_column("i")  # the highest rank that a cut leaves out; the ranks after it are kept
    firsts = cuts.get_column("first")
    terms = {}
    for power in ("1", "2"):
        running = ranked.get_column(f"c{power}")
        terms[f"tail{power}"] = running.gather(end) - running.gather(rest)
        terms[f"head{power}"] = cuts.get_column(f"e{power}") - ranked.get_column(f"e{power}").gather(firsts)
    t1, t2 = (pl.col(f"head{power}") + pl.col(f"tail{power}") for power in "12")
    cuts = cuts.with_columns(**terms).with_columns(rest=rest, value=t2 * pl.lit(k, dtype=pl.Int128) - t1 * t1)
    most = cuts.group_by("gid", maintain_order=True).agg(pl.col("value").max()).get_column("value")
    best = cuts.filter(pl.col("value") == most.gather(column_runs(cuts.get_column("gid")).of))
    best = best.with_columns(made=_copies_kept(best, ranked))
    return best.sort("gid", "made", "i").group_by("gid", maintain_order=True).agg(j=pl.col("i").first())


def _copies_kept(cuts: pl.DataFrame, ranked: pl.DataFrame) -> pl.Series:
    """How many copies each cut keeps, originals being preferred within the blocks that it splits."""
    block = ranked[cuts.get_column("rest")].select("below", "width", "originals", "copies")
    cuts = cuts.select("i", "below", "originals", "copies", "all_copies", "first", "rest")
    both = cuts.hstack(block.rename({name: f"{name}_" for name in block.columns}))
    low = pl.col("i") - pl.col("below")
    high = pl.col("below_") + pl.col("width_") - (pl.col("rest") - pl.col("first") + 1)
    from_low = (low - pl.col("originals")).clip(0)
    from_high = (high - pl.col("originals_")).clip(0)
    one_block = (low + high - pl.col("originals")).clip(0)
    after = pl.col("all_copies") - pl.col("copies_") - (pl.col("width_") - pl.col("originals_"))
    split = pl.when(pl.col("below") == pl.col("below_")).then(one_block).otherwise(from_low + from_high)
    return both.select(pl.col("copies") + split + after).to_series()
