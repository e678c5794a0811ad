"""SelectKDiverseElements (mmGRPO, arXiv 2508.04660): which members of a group are kept, and how often.

`max_variance` keeps exactly K members of greatest reward variance. For n > K the best K of n sorted rewards are the j
lowest and the K - j highest, for some j: variance is convex in each element, so moving a chosen one outwards never
lowers it. For n < K every member is kept once and each extra copy is, by the same convexity, of the smallest or the
largest reward. Both searches are exact, in integers. Ties: the set with the fewest copies made by PadGroups, then the
one with more high rewards, then within equal rewards originals before copies and lower rollouts before higher.

`even` keeps evenly spaced sorted rewards, both ends included (the lower median for K = 1), `random` a seeded draw
(n < K: every member once, the rest drawn with replacement), `all` everything.

Earlier attempts and groups below `min_group` take no part: the former ride along, the latter stay as they are.
"""

from __future__ import annotations

import numpy as np
import polars as pl

from stages.grouping.groups import Members
from stages.grouping.hashing import fold, fold_strings, start
from stages.grouping.load import Chunk
from stages.grouping.outermost import keep_outermost
from stages.grouping.rules import Rules
from stages.grouping.runs import runs_of


def select(chunk: Chunk, members: Members, rules: Rules) -> pl.Series:
    """How often each row of `members` stands in its group: 0 left out, 1 kept, more with extra copies.

    Args:
        chunk: names for seeded draws.
        members: with `n`, `low`, `high`, `total` and `small` in `groups`.
        rules: the recipe's rules.
    """
    times = np.ones(members.rows.height, dtype=np.int64)
    mode, k = rules.group.select, rules.k
    groups = members.groups.filter(~pl.col("small"), pl.col("n") > 0)
    if mode != "all":
        for wanted, change in (
            (groups.filter(pl.col("n") < k), {"max_variance": extremes, "even": even, "random": repeated}[mode]),
            (groups.filter(pl.col("n") > k), {"max_variance": keep_outermost, "even": even, "random": drawn}[mode]),
        ):
            if wanted.height:
                rows = _counted(members, wanted)
                at, count = change(chunk, rows, rules)
                times[at] = count
    return pl.Series("times", times)


def _counted(members: Members, groups: pl.DataFrame) -> pl.DataFrame:
    """Counted rows of some groups, as `at` (their row), beside their group's columns; in the members' order."""
    rows = members.rows.with_row_index("at").filter(~pl.col("early"))
    return rows.join(groups, on="gid", how="inner", maintain_order="left")


def extremes(chunk: Chunk, rows: pl.DataFrame, rules: Rules) -> tuple[np.ndarray, np.ndarray]:
    """Fewer than K: K - n copies of the smallest and the largest reward, as many of each as make the variance largest.

    With M the range and T the sum of (q - low), the b-th copy of the largest changes K^2 times the variance by
    M[(K - 2b + 1)M - 2T]: the best b is the last at which that is not negative (ties go to the largest reward). The
    copies go round the members of that reward, originals alone where there are any, in order of rollout.
    """
    runs = runs_of(rows.get_column("gid"))
    heads = rows[runs.starts].select("n", "low", "high", "total")
    span, shifted = pl.col("high") - pl.col("low"), pl.col("total") - pl.col("n") * pl.col("low")
    extra = rules.k - pl.col("n")
    best = ((rules.k + 1) * span - 2 * shifted).floordiv(2 * span).clip(0, extra)
    top = pl.when(span == 0).then(extra).otherwise(best)
    wanted = {"high": heads.select(top).to_series(), "low": heads.select(extra - top).to_series()}
    times = np.ones(rows.height, dtype=np.int64)
    original = (rows.get_column("copy") == 0).to_numpy()
    for end, count in wanted.items():
        at_end = (rows.get_column("q") == rows.get_column(end)).to_numpy()
        none = runs.sum(at_end & original) == 0
        pool = at_end & (original | none[runs.of])
        size = runs.sum(pool)[runs.of]
        turns = (count.to_numpy()[runs.of] - runs.rank(pool) + size - 1) // size
        times += np.where(pool, np.maximum(turns, 0), 0)
    return rows.get_column("at").to_numpy(), times


def even(chunk: Chunk, rows: pl.DataFrame, rules: Rules) -> tuple[np.ndarray, np.ndarray]:
    """K evenly spaced places of the n sorted rewards: the t-th is round(t (n - 1) / (K - 1)), halves upwards."""
    k = rules.k
    rows = rows.sort("gid", "q", "copy", "at")
    runs = runs_of(rows.get_column("gid"))
    sizes, starts = runs.sizes, runs.starts
    if k == 1:
        places = ((sizes - 1) // 2)[:, None]
    else:
        places = (2 * np.arange(k) * (sizes[:, None] - 1) + k - 1) // (2 * (k - 1))
    times = np.bincount((starts[:, None] + places).ravel(), minlength=rows.height)
    return rows.get_column("at").to_numpy(), times


def drawn(chunk: Chunk, rows: pl.DataFrame, rules: Rules) -> tuple[np.ndarray, np.ndarray]:
    """More than K: the K members of smallest hash of (seed, rollout, module, position)."""
    names = fold_strings(start(1, len(chunk.modules)), pl.Series(chunk.modules, dtype=pl.String))
    state = start(rules.seed, rows.height)
    state = fold_strings(state, chunk.rollouts.get_column("rollout_id").gather(rows.get_column("r")))
    state = fold(fold(state, names[(rows.get_column("kind") // len(chunk.keys)).to_numpy()]), rows.get_column("p"))
    ranked = rows.select("at", "gid").with_columns(pl.Series("draw", state)).sort("gid", "draw", "at")
    kept = ranked.select("at", times=(pl.int_range(pl.len()).over("gid") < rules.k).cast(pl.Int64))
    return kept.get_column("at").to_numpy(), kept.get_column("times").to_numpy()


def repeated(chunk: Chunk, rows: pl.DataFrame, rules: Rules) -> tuple[np.ndarray, np.ndarray]:
    """Fewer than K: every member once, and K - n draws by (seed, example, module, key, position, number)."""
    names = fold_strings(start(2, len(chunk.modules)), pl.Series(chunk.modules, dtype=pl.String))
    runs = runs_of(rows.get_column("gid"))
    sizes, starts = runs.sizes, runs.starts
    heads = rows[starts]
    kind = heads.get_column("kind").to_numpy()
    state = fold_strings(
        start(rules.seed, len(heads)), chunk.rollouts.get_column("example_id").gather(heads.get_column("r"))
    )
    state = fold(
        fold(state, names[kind // len(chunk.keys)]), np.array(chunk.keys, dtype=np.uint64)[kind % len(chunk.keys)]
    )
    state = fold(state, heads.get_column("p").to_numpy())
    extra = rules.k - sizes
    group = np.repeat(np.arange(len(sizes)), extra)
    turn = np.arange(len(group)) - np.repeat(np.cumsum(extra) - extra, extra)
    picked = fold(state[group], turn) % sizes[group].astype(np.uint64)
    places = starts[group] + picked.astype(np.int64)
    return rows.get_column("at").to_numpy(), 1 + np.bincount(places, minlength=rows.height)
