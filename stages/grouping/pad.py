"""PadGroups (mmGRPO, arXiv 2508.04660): groups of rollouts that call a module different numbers of times.

A *set* is one example's calls of one module (and of one value of the recipe's key columns); a *lane* is one rollout's
part of it. `reach` is the last position that a lane came to, counted over what the rollout did, usable or not. A
lane without a usable call has no part in its set, and does not delete the set's groups for the others.

- `truncate`: positions up to the shortest reach of the set.
- `fill`, `fill_last`: beyond its reach, a lane is present with a copy of one of its own usable calls: drawn with
  replacement from a seed of (seed, rollout, module, position), or the last one that was made. Only positions that
  hold an original are filled, and earlier attempts are never copied. Rollouts that stop early weigh more by this.
- `ragged`: what there is.

`strict` is the rule of other implementations: a set is left out when any rollout of the example has no lane in it.
Rollouts that are left out as a whole (stale, capped, without a reward) do not count there.
"""

from __future__ import annotations

import numpy as np
import polars as pl

from stages.grouping.hashing import U64, fold, fold_strings, start
from stages.grouping.load import Chunk
from stages.grouping.reasons import reason
from stages.grouping.rules import Rules

ORIGINAL, FILL, SELECT = 0, 1, 2
"""Codes of `copy`, in the order of schemas.groups.COPY_KINDS."""

MEMBER = ("row", "r", "lane", "p", "q", "early", "copy")
"""Columns of candidate members: source call, rollout, lane, position filled, reward, earlier attempt, kind of copy."""


def pad(chunk: Chunk, calls: pl.DataFrame, rollouts: pl.DataFrame, rules: Rules) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Turn judged calls into candidate members.

    Args:
        chunk: what was loaded.
        calls: judged calls.
        rollouts: the chunk's rollouts, with `out` where they are left out as a whole.
        rules: the recipe's rules.

    Returns:
        (members, calls): members in no order, with the columns `MEMBER`; calls with the reasons of this step.
    """
    group = rules.group
    calls = calls.with_columns(lane=pl.col("r").cast(pl.Int64) * chunk.lanes + _kind(chunk))
    if group.strict or group.pad == "truncate":
        lanes = _lanes(chunk, calls)
        calls = _strict(chunk, calls, rollouts, lanes) if group.strict else calls
        calls = _truncate(chunk, calls, lanes) if group.pad == "truncate" else calls
    usable = calls.lazy().filter(pl.col("reason").is_null()).with_columns(copy=pl.lit(ORIGINAL, dtype=pl.UInt8))
    members = usable.select(MEMBER).collect()
    if group.pad in ("fill", "fill_last"):
        members = pl.concat([members, _copies(chunk, calls, members, rules)])
    return members, calls


def _kind(chunk: Chunk) -> pl.Expr:
    """Rank of (module, key) in the chunk."""
    return pl.col("m").cast(pl.Int64) * len(chunk.keys) + pl.col("key")


def _lanes(chunk: Chunk, calls: pl.DataFrame) -> pl.DataFrame:
    """Per lane with a usable call: `lane`, `r`, `set`, `reach`, `usable` (calls) and `top` (last usable position)."""
    sound = pl.col("reason").is_null()
    lanes = (
        calls.lazy()
        .filter("final")
        .group_by("lane")
        .agg(reach=pl.col("p").max(), usable=sound.sum(), top=pl.col("p").filter(sound).max())
        .filter(pl.col("usable") > 0)
        .with_columns(r=(pl.col("lane") // chunk.lanes).cast(pl.UInt32), kind=pl.col("lane") % chunk.lanes)
        .collect()
    )
    e = chunk.rollouts.get_column("e").gather(lanes.get_column("r")).cast(pl.Int64)
    return lanes.with_columns(set=e * chunk.lanes + lanes.get_column("kind"))


def _sets(chunk: Chunk, calls: pl.DataFrame) -> pl.DataFrame:
    e = chunk.rollouts.get_column("e").gather(calls.get_column("r")).cast(pl.Int64)
    return calls.with_columns(set=e * chunk.lanes + pl.col("lane") % chunk.lanes)


def _strict(chunk: Chunk, calls: pl.DataFrame, rollouts: pl.DataFrame, lanes: pl.DataFrame) -> pl.DataFrame:
    wanted = rollouts.filter(pl.col("out").is_null()).group_by("e").agg(wanted=pl.len())
    whole = lanes.group_by("set").agg(callers=pl.len()).with_columns(e=(pl.col("set") // chunk.lanes).cast(pl.UInt32))
    whole = whole.join(wanted, on="e").filter(pl.col("callers") == pl.col("wanted"))
    inside = _sets(chunk, calls).select(pl.col("set").is_in(whole.get_column("set").implode())).to_series()
    lost = pl.col("reason").is_null() & ~inside
    return calls.with_columns(reason=pl.when(lost).then(reason("strict")).otherwise("reason"))


def _truncate(chunk: Chunk, calls: pl.DataFrame, lanes: pl.DataFrame) -> pl.DataFrame:
    ends = lanes.group_by("set").agg(end=pl.col("reach").min())
    joined = _sets(chunk, calls).join(ends, on="set", how="left", maintain_order="left")
    lost = pl.col("reason").is_null() & (pl.col("p") > pl.col("end"))
    chosen = pl.when(lost).then(reason("position_truncated")).otherwise("reason")
    return joined.with_columns(reason=chosen).drop("end", "set")


def _copies(chunk: Chunk, calls: pl.DataFrame, members: pl.DataFrame, rules: Rules) -> pl.DataFrame:
    """The copies that fill lanes up to the top of their set."""
    looped = calls.group_by("m").agg(pl.col("p").max()).filter(pl.col("p") > 0).get_column("m")
    lanes = _lanes(chunk, calls.filter(pl.col("m").is_in(looped.implode())))
    top = lanes.group_by("set").agg(end=pl.col("top").max())
    short = lanes.join(top, on="set").filter(pl.col("reach") < pl.col("end"))
    span = pl.int_ranges(pl.col("reach") + 1, pl.col("end") + 1, dtype=pl.Int32)
    holes = short.with_columns(p=span).explode("p").sort("lane", "p")
    if lanes.filter(pl.col("usable") != pl.col("reach") + 1).height:
        holes = _with_original(chunk, holes, members)
    counts = short.select("lane", "usable").sort("lane")
    starts = counts.select("lane", start=pl.col("usable").cum_sum() - pl.col("usable"))
    holes = holes.join(starts, on="lane", how="inner", maintain_order="left")
    size = holes.get_column("usable").to_numpy().astype(np.uint64)
    last = rules.group.pad == "fill_last"
    pick = size - np.uint64(1) if last else _draws(chunk, holes, rules.seed) % size
    source = pl.Series(holes.get_column("start").to_numpy().astype(np.int64) + pick.astype(np.int64))
    sources = members.join(short.select("lane"), on="lane", how="semi", maintain_order="left").filter(~pl.col("early"))
    copied = sources.sort("lane", "row").select("row", "q")[source]
    columns = holes.select("r", "lane", "p").hstack(copied)
    fill = columns.with_columns(early=pl.lit(False), copy=pl.lit(FILL, dtype=pl.UInt8))
    return fill.select(MEMBER)


def _with_original(chunk: Chunk, holes: pl.DataFrame, members: pl.DataFrame) -> pl.DataFrame:
    """Holes at positions where some lane of the set has a usable call."""
    real = _sets(chunk, members.filter(~pl.col("early"))).select("set", "p").unique()
    return holes.join(real, on=["set", "p"], how="semi", maintain_order="left")


def _draws(chunk: Chunk, holes: pl.DataFrame, seed: int) -> U64:
    """One 64-bit draw per hole, a function of (seed, rollout_id, module name, position)."""
    modules = (holes.get_column("kind") // len(chunk.keys)).to_numpy()
    names = fold_strings(start(0, len(chunk.modules)), pl.Series(chunk.modules, dtype=pl.String))
    state = fold_strings(
        start(seed, holes.height), chunk.rollouts.get_column("rollout_id").gather(holes.get_column("r"))
    )
    return fold(fold(state, names[modules]), holes.get_column("p").to_numpy())
