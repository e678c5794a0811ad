"""Traces: what became of each trace of a snapshot, and what it was scored."""

from __future__ import annotations

import pyarrow as pa

from schemas.table import TableSpec, column, not_negative

TRACES = TableSpec(
    name="traces",
    version=1,
    schema=pa.schema(
        [
            column("trace", pa.string()),  # its id in the log
            column("format", pa.string()),
            column("rollout_id", pa.string(), null=True),  # null where it is no rollout
            column("example_id", pa.string(), null=True),
            column("reason", pa.string(), null=True),  # why it is no rollout
            column("reward_reason", pa.string(), null=True),  # why it has no reward
            column("scores", pa.string()),  # canonical JSON object, lists of numbers or nulls by name
            column("spans", pa.int32()),
            column("calls", pa.int32()),  # LM calls, those left out included
            column("user", pa.string(), null=True),
            column("start", pa.int64(), null=True),  # nanoseconds since 1970
            column("metadata", pa.string(), null=True),  # canonical JSON object
            column("fidelity_reasons", pa.string()),  # canonical JSON object: why calls are not exact -> calls
            column("redacted", pa.string()),  # canonical JSON object: kind of value taken out -> values
        ]
    ),
    key=("trace",),
    rules=(not_negative("spans"), not_negative("calls")),
)

LEFT_OUT = TableSpec(
    name="left_out",
    version=1,
    schema=pa.schema(
        [
            column("trace", pa.string()),
            column("span", pa.string()),
            column("reason", pa.string()),
            column("detail", pa.string(), null=True),
        ]
    ),
    key=("trace", "span"),
)
"""LM calls that are no row of invocations, and why."""
