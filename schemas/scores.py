"""Scores: one row per (policy, example, sample), made by the evaluate stage, and how long each run took."""

from __future__ import annotations

import pyarrow as pa

from schemas.rollouts import STATUSES
from schemas.table import TableSpec, bounded, column, not_negative, one_of

SCORES = TableSpec(
    name="scores",
    version=2,
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
            column("rollout_id", pa.string()),  # of the run, as its invocations say
            # What the run asked of LMs, retries included, its metric's calls left out. Tokens are null where those of
            # a call are not known: a server that answers in text, a call that broke off.
            column("calls", pa.int32()),
            column("prompt_tokens", pa.int64(), null=True),
            column("completion_tokens", pa.int64(), null=True),
        ]
    ),
    key=("policy", "example_id", "sample"),
    rules=(
        one_of("status", STATUSES),
        bounded("score"),
        not_negative("sample"),
        not_negative("calls"),
        not_negative("prompt_tokens"),
        not_negative("completion_tokens"),
    ),
)

LATENCY = TableSpec(
    name="latency",
    version=1,
    schema=pa.schema(
        [
            column("example_id", pa.string()),
            column("sample", pa.int32()),
            column("seconds", pa.float64()),  # from the program's start to its end, in the company that it ran in
        ]
    ),
    key=("example_id", "sample"),
    rules=(not_negative("sample"), not_negative("seconds")),
)
"""Wall clock, so that it lies in `telemetry/` and is part of no digest."""
