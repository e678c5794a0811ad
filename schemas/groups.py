"""Groups (one row per member), excluded invocations, and policies."""

from __future__ import annotations

import pyarrow as pa

from schemas.table import TableSpec, bounded, column, not_negative, one_of

COPY_KINDS = ("none", "fill", "select")
"""How a member came into its group: itself, a PadGroups copy, or an extra copy made by selection."""

GROUPS = TableSpec(
    name="groups",
    version=1,
    schema=pa.schema(
        [
            column("group_id", pa.string()),
            column("member_index", pa.int32()),
            column("example_id", pa.string()),
            column("module", pa.string()),
            column("invocation_index", pa.int32()),
            column("rollout_id", pa.string()),
            column("call_index", pa.int32()),  # of the source invocation: with rollout_id it finds the tokens
            column("attempt", pa.int32()),
            column("copy_kind", pa.string()),
            column("source", pa.string()),
            column("policy", pa.string(), null=True),
            column("reward", pa.float64()),
            column("advantage", pa.float64()),
            column("weight", pa.float64()),
        ]
    ),
    key=("group_id", "member_index"),
    rules=(
        one_of("copy_kind", COPY_KINDS),
        bounded("reward"),
        bounded("advantage"),
        bounded("weight", 0.0),
        not_negative("member_index"),
    ),
)

EXCLUDED = TableSpec(
    name="excluded",
    version=1,
    schema=pa.schema(
        [
            column("rollout_id", pa.string()),
            column("call_index", pa.int32(), null=True),  # null: the rollout made no call
            column("module", pa.string(), null=True),
            column("invocation_index", pa.int32(), null=True),
            column("attempt", pa.int32(), null=True),
            column("reason", pa.string()),
        ]
    ),
    key=("rollout_id", "call_index"),
)
