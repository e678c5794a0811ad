"""`unit = "trajectory"`: a group is an example, a member a rollout, with one row per call.

Mean, deviation, K and exclusion act on whole rollouts; there is no PadGroups. A rollout is worth its reward, or the
format reward of its worst call when it ended `parse_failed`, or `failure_score` when it crashed otherwise or (with
`truncated = "failure"`) when one of its trained completions was cut. It takes part with the final attempts of its
trained calls; when one of those cannot be used, the whole rollout is left out for that reason. Failed earlier attempts
are left out: they have no place in the trajectory that was scored. Calls may be concurrent: no index is compared.
"""

from __future__ import annotations

from dataclasses import replace

import polars as pl

from stages.grouping.load import Chunk
from stages.grouping.pad import MEMBER, ORIGINAL
from stages.grouping.reasons import reason
from stages.grouping.rewards import format_reward, micro
from stages.grouping.rules import Rules

NAME = "*"
"""Stands for the module of a group of trajectories."""


def as_members(
    chunk: Chunk, calls: pl.DataFrame, rollouts: pl.DataFrame, rules: Rules
) -> tuple[Chunk, pl.DataFrame, pl.DataFrame]:
    """One candidate member per rollout.

    Returns:
        (chunk, members, calls): the chunk as one of a single module, members with `row` = `r`, and calls with the
        reasons of whole rollouts and their rewards.
    """
    calls = _whole_rollouts(calls)
    live = calls.lazy().filter(pl.col("reason").is_null()).select("r").unique().sort("r").collect()
    worth = _worth(calls, rollouts, rules)
    calls = calls.with_columns(worth.gather(calls.get_column("r")).alias("q"))
    members = live.with_columns(worth.gather(live.get_column("r")).alias("q")).select(
        row="r", r="r", kind=pl.lit(0, dtype=pl.Int64), p=pl.lit(0, dtype=pl.Int32), q="q",
        early=pl.lit(False), copy=pl.lit(ORIGINAL, dtype=pl.UInt8),
    )  # fmt: skip
    return replace(chunk, modules=(NAME,), keys=(0,), positions=1), members.select(MEMBER), calls


def _whole_rollouts(calls: pl.DataFrame) -> pl.DataFrame:
    """Leave earlier attempts out, and rollouts with a trained final call that cannot be used."""
    early = pl.col("reason").is_null() & ~pl.col("final")
    calls = calls.with_columns(reason=pl.when(early).then(reason("earlier_attempt")).otherwise("reason"))
    lost = calls.filter("final", pl.col("reason").is_not_null(), pl.col("reason") != "not_trainable")
    why = lost.group_by("r").agg(why=pl.col("reason").sort_by(pl.col("reason").to_physical()).first())
    joined = calls.join(why, on="r", how="left", maintain_order="left")
    return joined.with_columns(reason=pl.coalesce("reason", "why")).drop("why")


def _worth(calls: pl.DataFrame, rollouts: pl.DataFrame, rules: Rules) -> pl.Series:
    """The reward of every rollout, in millionths."""
    group = rules.group
    finals = calls.lazy().filter("final")
    worst = finals.filter("failed").group_by("r").agg(worst=pl.col("share").min())
    cut = finals.filter("cut", "trainable").select("r").unique().with_columns(cut=pl.lit(True))
    frame = rollouts.lazy().select("status", "q", r=pl.int_range(pl.len(), dtype=pl.UInt32))
    frame = frame.join(worst, on="r", how="left", maintain_order="left")
    frame = frame.join(cut, on="r", how="left", maintain_order="left")
    failure = micro(group.failure_score)
    return (
        frame.select(
            pl.when(pl.col("status") == "parse_failed")
            .then(format_reward(group, pl.col("worst").fill_null(0.0)))
            .when((pl.col("status") == "ok") & pl.col("cut").is_null())
            .then("q")
            .otherwise(failure)
        )
        .collect()
        .to_series()
    )


def calls_of(written: pl.DataFrame, calls: pl.DataFrame) -> pl.DataFrame:
    """Rows of members as rows of their calls, in order; `row` becomes the call's row.

    Args:
        written: member rows in order, with `r` and what belongs to the member.
        calls: all calls; those without a reason are the trained ones.
    """
    usable = calls.filter(pl.col("reason").is_null()).select("r", call="row", tokens="tokens")
    own = usable.group_by("r", maintain_order=True).agg("call", "tokens")
    joined = written.join(own, on="r", how="left", maintain_order="left")
    return joined.explode("call", "tokens").drop("row").rename({"call": "row"})
