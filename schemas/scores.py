"""Scores: one row per (policy, example, sample), made by the evaluate stage."""

from __future__ import annotations

import pyarrow as pa

from schemas.rollouts import STATUSES
from schemas.table import TableSpec, bounded, column, not_negative, one_of

SCORES = TableSpec(
    name="scores",
    version=1,
    schema=pa.schema(
        [
            column("policy", pa.string()),
            column("example_id", pa.string()),
            column("sample", pa.int32()),
            column("score", pa.float64(), null=True),  # null when the run failed; `status` says why
            column("parts", pa.string(), null=True),  # canonical JSON object of numbers
            column("output", pa.string(), null=True),  # canonical JSON
            column("status", pa.string()),
            column("error", pa.string(), null=True),
        ]
    ),
    key=("policy", "example_id", "sample"),
    rules=(one_of("status", STATUSES), bounded("score"), not_negative("sample")),
)
