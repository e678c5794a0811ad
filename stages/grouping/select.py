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
import numpy.typing as npt
import polars as pl

from stages.grouping.groups import Members
from stages.grouping.hashing import fold, fold_strings, start
from stages.grouping.load import Chunk
from stages.grouping.outermost import keep_outermost
from stages.grouping.rules import Rules
from stages.grouping.runs import Bools, Ints, column_runs, rank_within, runs_of


def select(chunk: Chunk, members: Members, rules: Rules) -> Ints:
    """How often each row of `members` stands in its group: 0 left out, 1 kept, more with extra copies.

    Args:
        chunk: names for seeded draws.
        members: with `n`, `low`, `high`, `total` and `small` in `groups`.
        rules: the recipe's rules.
    """
    times = np.ones(members.rows.height, dtype=np.int64)
    mode, k = rules.group.select, rules.k
    if mode == "all":
        return times
    n, small = members.groups.get_column("n").to_numpy(), members.groups.get_column("small").to_numpy()
    fewer = {"max_variance": extremes, "even": even, "random": repeated}[mode]
    more = {"max_variance": keep_outermost, "even": even, "random": drawn}[mode]
    for wanted, change in ((~small & (n > 0) & (n < k), fewer), (~small & (n > k), more)):
        if wanted.any():
            at, count = change(chunk, members, counted_rows(members, wanted), rules)
            times[at] = count
    return times


def counted_rows(members: Members, wanted: Bools) -> Ints:
    """Where the counted rows of some groups stand, in order."""
    early = members.rows.get_column("early").to_numpy()
    return np.flatnonzero(wanted[members.runs.of] & ~early)


def extremes(chunk: Chunk, members: Members, at: Ints, rules: Rules) -> tuple[Ints, Ints]:
    """Fewer than K: K - n copies of the smallest and the largest reward, as many of each as make variance largest.

    With M the range and T the sum of (q - low), the b-th copy of the largest changes K^2 times the variance by
    M[(K - 2b + 1)M - 2T]: the best b is the last at which that is not negative (ties go to the largest reward). The
    copies go round the members of that reward, originals alone where there are any, in order of rollout.
    """
    span, shifted = pl.col("high") - pl.col("low"), pl.col("total") - pl.col("n") * pl.col("low")
    extra = (rules.k - pl.col("n")).clip(0)
    best = ((rules.k + 1) * span - 2 * shifted).floordiv(2 * span).clip(0, extra)
    top = pl.when(span == 0).then(extra).otherwise(best)
    wanted = members.groups.select("low", "high", from_high=top, from_low=extra - top)
    of = members.runs.of[at]
    q, original = (members.rows.get_column(name).gather(at).to_numpy() for name in ("q", "copy"))
    times = np.ones(len(at), dtype=np.int64)
    for end in ("low", "high"):
        times += _in_turn(
            q == wanted.get_column(end).to_numpy()[of], original == 0, of, wanted.get_column(f"from_{end}").to_numpy()
        )
    return at, times


def _in_turn(end: Bools, original: Bools, of: npt.NDArray[np.int32], copies: Ints) -> Ints:
    """Copies of each row when every group's go round its rows at one end (its originals there, if any)."""
    some = np.zeros(len(copies), dtype=bool)
    some[of[end & original]] = True
    pool = np.flatnonzero(end & (original | ~some[of]))
    groups = of[pool]
    turn, sizes = rank_within(groups, len(copies))
    found = np.zeros(len(end), dtype=np.int64)
    found[pool] = np.maximum((copies[groups] - turn + sizes[groups] - 1) // sizes[groups], 0)
    return found


def even(chunk: Chunk, members: Members, at: Ints, rules: Rules) -> tuple[Ints, Ints]:
    """K evenly spaced places of the n sorted rewards: the t-th is round(t (n - 1) / (K - 1)), halves upwards."""
    k = rules.k
    rows = _ranked(members, at)
    runs = column_runs(rows.get_column("gid"))
    if k == 1:
        places = ((runs.sizes - 1) // 2)[:, None]
    else:
        places = (2 * np.arange(k) * (runs.sizes[:, None] - 1) + k - 1) // (2 * (k - 1))
    times = np.bincount((runs.starts[:, None] + places).ravel(), minlength=rows.height)
    return rows.get_column("at").to_numpy(), times


def _ranked(members: Members, at: Ints) -> pl.DataFrame:
    """Rows sorted by reward within their group, originals before copies."""
    rows = members.rows.select("q", "copy")[at].with_columns(at=pl.Series(at), gid=pl.Series(members.runs.of[at]))
    return rows.sort("gid", "q", "copy", "at")


def drawn(chunk: Chunk, members: Members, at: Ints, rules: Rules) -> tuple[Ints, Ints]:
    """More than K: the K members of smallest hash of (seed, rollout, module, position)."""
    names = fold_strings(start(1, len(chunk.modules)), pl.Series(chunk.modules, dtype=pl.String))
    of = members.runs.of[at]
    groups = members.groups.select("kind", "p")[of]
    ids = chunk.rollouts.get_column("rollout_id").gather(members.rows.get_column("r").gather(at))
    state = fold_strings(start(rules.seed, len(at)), ids)
    state = fold(state, names[groups.get_column("kind").to_numpy() // len(chunk.keys)])
    state = fold(state, groups.get_column("p").to_numpy())
    order = np.lexsort((at, state, of))
    rank, _ = rank_within(of[order], members.groups.height)
    return at[order], (rank < rules.k).astype(np.int64)


def repeated(chunk: Chunk, members: Members, at: Ints, rules: Rules) -> tuple[Ints, Ints]:
    """Fewer than K: every member once, and K - n draws by (seed, example, module, key, position, number)."""
    names = fold_strings(start(2, len(chunk.modules)), pl.Series(chunk.modules, dtype=pl.String))
    keys = np.array(chunk.keys, dtype=np.uint64)
    runs = column_runs(pl.Series(members.runs.of[at]))
    heads = members.groups.select("kind", "p")[members.runs.of[at[runs.starts]]]
    kind = heads.get_column("kind").to_numpy()
    ids = chunk.rollouts.get_column("example_id").gather(members.rows.get_column("r").gather(at[runs.starts]))
    state = fold_strings(start(rules.seed, len(ids)), ids)
    state = fold(fold(state, names[kind // len(keys)]), keys[kind % len(keys)])
    state = fold(state, heads.get_column("p").to_numpy())
    draws = runs_of(rules.k - runs.sizes)
    turn = np.arange(len(draws.of)) - draws.starts[draws.of]
    picked = fold(state[draws.of], turn) % runs.sizes[draws.of].astype(np.uint64)
    places = runs.starts[draws.of] + picked.astype(np.int64)
    return at, 1 + np.bincount(places, minlength=len(at))
