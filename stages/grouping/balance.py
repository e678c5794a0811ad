"""Weights: what counts equally in the loss.

The trainer multiplies each member's loss by its weight and normalises by the rules of its own loss type.

- `sequence` and `token`: every member weighs 1. Whether a member or a token counts equally is the trainer's
  normalisation.
- `module`: 1 / (groups of the member's module in its example), so that a module called eight times weighs as one.
  Groups count as they are formed, flat ones too: dropping flat groups changes no weight.
- trajectories: each token weighs 1 / (tokens of its rollout that are trained on). Under `sequence`, where the trainer
  takes the mean over a call's tokens, that is a weight of (the call's tokens / the rollout's) per call; under `token`,
  where it sums them, 1 / (the rollout's).
"""

from __future__ import annotations

import polars as pl


def group_weights(groups: pl.DataFrame, keys: int, balance: str) -> pl.Series:
    """The weight of every group's members.

    Args:
        groups: with `e`, `kind` and `small`.
        keys: keys per module: `kind // keys` is the module.
        balance: what counts equally.
    """
    if balance != "module":
        return pl.repeat(1.0, groups.height, eager=True).alias("weight")
    formed = (~pl.col("small")).sum().over("e", pl.col("kind") // keys)
    return groups.select(weight=pl.when(formed > 0).then(1.0 / formed).otherwise(1.0)).to_series()


def token_weights(rows: pl.DataFrame, balance: str) -> pl.Series:
    """The weight of every row of a trajectory table.

    Args:
        rows: with `r`, `row` and `tokens` of the row's call; a call may stand in several rows.
        balance: `sequence` or `token`.
    """
    total = rows.select("r", "row", "tokens").unique().group_by("r").agg(total=pl.col("tokens").sum())
    joined = rows.join(total, on="r", how="left", maintain_order="left")
    numerator = pl.col("tokens") if balance == "sequence" else pl.lit(1)
    return joined.select(weight=numerator.cast(pl.Float64) / pl.col("total").cast(pl.Float64)).to_series()
