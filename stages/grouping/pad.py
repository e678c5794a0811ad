"""PadGroups (mmGRPO, arXiv 2508.04660): groups of rollouts that call a module different numbers of times.

A *set* is one example's calls of one module (and of one value of the recipe's key columns). Within a set, `reach` is
the last position that a rollout came to, counted over what it did, usable or not; rollouts without a usable call of
the module have no part in it, and do not delete the group for the others (unless `strict`).

- `truncate`: positions up to the shortest reach of the set.
- `fill`, `fill_last`: beyond its reach, a rollout is present with a copy of one of its own usable calls: drawn with
  replacement from a seed of (seed, rollout, module, position), or the last one. Only positions that hold an original
  are filled, and earlier attempts are never copied. Rollouts that stop early are up-weighted by this.
- `ragged`: what there is.
"""

from __future__ import annotations

import numpy as np
import polars as pl

from schemas.recipe import GroupSection
from stages.grouping.hashing import fold, fold_strings, start
from stages.grouping.load import Chunk
from stages.grouping.reasons import Reason, reason

ORIGINAL, FILL, SELECT = 0, 1, 2
"""Codes of `copy`, in the order of schemas.groups.COPY_KINDS."""


def pad(chunk: Chunk, calls: pl.DataFrame, group: GroupSection, seed: int) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Turn judged calls into candidate members.

    Args:
        chunk: for the rollouts' ids and the modules' names, from which draws are seeded.
        calls: judged calls, with `row` (their number) and `e` (their example).
        group: the recipe's rules.
        seed: the recipe's seed.

    Returns:
        (members, calls): members are the usable calls (`row`, `e`, `m`, `p`, `r`, `attempt`, `early`, `q`) plus
        copies, told apart by `copy`; calls have the reasons of this step filled in.
    """
    reach = _reach(calls)
    if group.strict:
        calls = _strict(calls, reach, _contributing(chunk, calls))
    if group.pad == "truncate":
        calls = _truncate(calls, reach)
    members = calls.filter(pl.col("reason").is_null()).select(
        "row", "e", "m", "p", "r", "attempt", "early", "q", copy=pl.lit(ORIGINAL, dtype=pl.UInt8)
    )
    if group.pad in ("fill", "fill_last"):
        copies = _copies(chunk, members, reach, seed, last=group.pad == "fill_last")
        members = pl.concat([members, copies])
    return members, calls


def _reach(calls: pl.DataFrame) -> pl.DataFrame:
    """Per (e, m, r): `reach`, the last position of any final attempt, where at least one is usable."""
    return (
        calls.lazy()
        .filter("final")
        .group_by("e", "m", "r")
        .agg(reach=pl.col("p").max(), usable=pl.col("reason").is_null().any())
        .filter("usable")
        .drop("usable")
        .collect()
    )


def _contributing(chunk: Chunk, calls: pl.DataFrame) -> pl.DataFrame:
    """Per example, the number of rollouts that are not left out as a whole."""
    out = calls.filter(pl.col("reason") == "reward_missing").get_column("r").unique()
    kept = chunk.rollouts.with_row_index("r").filter(~pl.col("r").is_in(out.implode()))
    return kept.group_by(e="example").agg(rollouts=pl.len())


def _strict(calls: pl.DataFrame, reach: pl.DataFrame, contributing: pl.DataFrame) -> pl.DataFrame:
    whole = reach.group_by("e", "m").agg(callers=pl.len()).join(contributing, on="e")
    whole = whole.select("e", "m", complete=pl.col("callers") == pl.col("rollouts"))
    joined = calls.join(whole, on=["e", "m"], how="left", maintain_order="left")
    incomplete = pl.col("reason").is_null() & ~pl.col("complete").fill_null(False)
    return joined.with_columns(reason=pl.when(incomplete).then(reason("strict")).otherwise("reason")).drop("complete")


def _truncate(calls: pl.DataFrame, reach: pl.DataFrame) -> pl.DataFrame:
    ends = reach.group_by("e", "m").agg(end=pl.col("reach").min())
    joined = calls.join(ends, on=["e", "m"], how="left", maintain_order="left")
    beyond = pl.col("reason").is_null() & (pl.col("p") > pl.col("end"))
    chosen = pl.when(beyond).then(reason("position_truncated")).otherwise(pl.col("reason").cast(Reason))
    return joined.with_columns(reason=chosen).drop("end")


def _copies(chunk: Chunk, members: pl.DataFrame, reach: pl.DataFrame, seed: int, *, last: bool) -> pl.DataFrame:
    finals = members.lazy().filter(~pl.col("early"))
    positions = finals.select("e", "m", "p").unique()
    holes = (
        reach.lazy().join(positions, on=["e", "m"]).filter(pl.col("p") > pl.col("reach")).sort("e", "m", "r", "p")
    ).collect()
    own = (
        finals.join(holes.lazy().select("m", "r").unique(), on=["m", "r"], how="semi")
        .sort("p")
        .group_by("m", "r", maintain_order=True)
        .agg(pl.col("row", "attempt", "q"), size=pl.len())
    )
    holes = holes.lazy().join(own, on=["m", "r"], how="inner", maintain_order="left").collect()
    size = holes.get_column("size").to_numpy().astype(np.uint64)
    draw = size - np.uint64(1) if last else _draws(chunk, holes, seed) % size
    pick = pl.Series("pick", draw.astype(np.int64))
    return holes.with_columns(pick).select(
        pl.col("row").list.get(pl.col("pick")),
        "e",
        "m",
        "p",
        "r",
        pl.col("attempt").list.get(pl.col("pick")),
        early=pl.lit(False),
        q=pl.col("q").list.get(pl.col("pick")),
        copy=pl.lit(FILL, dtype=pl.UInt8),
    )


def _draws(chunk: Chunk, holes: pl.DataFrame, seed: int) -> np.ndarray[tuple[int], np.dtype[np.uint64]]:
    """One 64-bit draw per hole, a function of (seed, rollout_id, module name, position)."""
    rows, modules = holes.get_column("r"), holes.get_column("m").to_numpy()
    names = fold_strings(start(0, len(chunk.modules)), pl.Series(chunk.modules, dtype=pl.String))
    state = fold_strings(start(seed, len(rows)), chunk.rollouts.get_column("rollout_id").gather(rows))
    return fold(fold(state, names[modules]), holes.get_column("p").to_numpy())
