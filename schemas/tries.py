"""Tries: what a run knows of its examples before an iteration draws some of them."""

from __future__ import annotations

import pyarrow as pa

from schemas.table import TableSpec, column, not_negative

TRIES = TableSpec(
    name="tries",
    version=1,
    schema=pa.schema(
        [
            column("example_id", pa.string()),
            column("iteration", pa.int32()),  # the last one that tried it
            column("rollouts", pa.int32()),  # of that iteration, with a worth: what failed for our own reasons has none
            column("mean", pa.float64()),  # of their worth: the reward, or the score of the failure
            column("spread", pa.float64()),  # largest minus smallest
            column("deviation", pa.float64()),  # standard deviation, of this sample itself (divided by n)
        ]
    ),
    key=("example_id",),
    rules=(not_negative("iteration"), not_negative("deviation")),
)
"""Written by the rollout stage for the next iteration's, where `rollout.choice` is `spread`. One row per example."""
