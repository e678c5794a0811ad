"""What rollouts are worth to whoever chooses examples: their rewards, and how far these are apart.

A rollout that failed is worth what the group stage will make of it as a whole, by the rules of `unit = "trajectory"`:
the format reward of its worst call when it could not be parsed, `failure_score` when it crashed. One that the metric
or the machine failed says nothing of its example, and is worth nothing that could be known: null.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import polars as pl

from schemas.recipe_data import GroupSection
from schemas.rollouts import NOT_OF_THE_PROGRAM

MICRO = 1_000_000
"""Worths are summed in whole millionths: exact, whatever the order of rows."""
_PLACE = ("rollout_id", "module", "invocation_index")


@dataclass(frozen=True)
class Worths:
    """The worths of one example's rollouts, in millionths, sorted."""

    values: tuple[int, ...]

    @property
    def mean(self) -> float:
        """Their mean."""
        return sum(self.values) / len(self.values) / MICRO

    @property
    def spread(self) -> float:
        """Largest minus smallest."""
        return (self.values[-1] - self.values[0]) / MICRO

    @property
    def deviation(self) -> float:
        """Standard deviation, of this sample itself."""
        n, total = len(self.values), sum(self.values)
        return math.sqrt(n * sum(value * value for value in self.values) - total * total) / n / MICRO

    def mixed(self, group: GroupSection) -> bool:
        """Whether they lie further apart than a flat group's."""
        return self.values[-1] - self.values[0] > round(group.min_spread * MICRO)


def worths(rollouts: pl.DataFrame, invocations: pl.DataFrame, group: GroupSection) -> dict[str, Worths]:
    """By example, sorted; examples whose rollouts are all without a worth are left out.

    Args:
        rollouts: rows of the rollouts table.
        invocations: their rows of the invocations table.
        group: scores of failures.
    """
    last = pl.col("attempt") == pl.col("attempt").max().over(_PLACE)
    failed = pl.col("parse_status") == "failed"
    calls = (
        invocations.filter(last)
        .group_by("rollout_id")
        .agg(
            share=pl.col("parsed_share").fill_null(0.0).filter(failed).min().fill_null(0.0),
            cut=((pl.col("finish_reason") == "length") & pl.col("trainable")).any(),
        )
    )
    joined = rollouts.join(calls, on="rollout_id", how="left", maintain_order="left").with_columns(_worth(group))
    known = joined.drop_nulls("worth").sort("example_id", "worth").group_by("example_id", maintain_order=True)
    return {example: Worths(tuple(values)) for example, values in known.agg("worth").iter_rows()}


def _worth(group: GroupSection) -> pl.Expr:
    low, high = group.format_failure_score, group.failure_score
    status, cut = pl.col("status"), pl.col("cut").fill_null(False)
    worth = (
        pl.when(status.is_in(NOT_OF_THE_PROGRAM) | (cut & (group.truncated == "mask")))
        .then(None)
        .when(status == "parse_failed")
        .then(low + pl.col("share").fill_null(0.0) * (high - low))
        .when((status != "ok") | cut)
        .then(pl.lit(high))
        .otherwise("reward")
    )
    return (worth * MICRO).round().cast(pl.Int64).alias("worth")


def tries(found: Mapping[str, Worths], iteration: int, before: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Rows of the tries table: what is known after an iteration, by example.

    Args:
        found: what the iteration's rollouts are worth.
        iteration: its number.
        before: the rows that the iteration started from.
    """
    known = {row["example_id"]: row for row in before}
    for example, worth in found.items():
        known[example] = {
            "example_id": example,
            "iteration": iteration,
            "rollouts": len(worth.values),
            "mean": worth.mean,
            "spread": worth.spread,
            "deviation": worth.deviation,
        }
    return [known[example] for example in sorted(known)]
