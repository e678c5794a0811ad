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
        bounded("advantage", -1e15, 1e15),
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

SUMMARY = TableSpec(
    name="summary",
    version=1,
    schema=pa.schema(
        [
            column("module", pa.string()),  # "*" stands for groups of trajectories
            column("invocation_index", pa.int32()),
            column("invocations", pa.int64()),  # rows of the invocations table, all attempts
            column("groups", pa.int64()),  # groups written
            column("flat_groups", pa.int64()),  # flat ones, written or not
            column("small_groups", pa.int64()),  # with fewer than min_group rollouts, not written
            column("size_min", pa.int64(), null=True),  # members of a written group
            column("size_max", pa.int64(), null=True),
            column("members", pa.int64()),
            column("copies_fill", pa.int64()),
            column("copies_select", pa.int64()),
            column("attempts", pa.int64()),  # members that are failed earlier attempts
            column("reward_mean", pa.float64(), null=True),  # over usable final attempts, before padding and selection
            column("reward_min", pa.float64(), null=True),
            column("reward_max", pa.float64(), null=True),
            column(
                "spread_mean", pa.float64(), null=True
            ),  # mean of largest minus smallest reward, flat groups included
            column("not_selected_share", pa.float64(), null=True),  # of candidates, copies of PadGroups included
            column("advantage_before", pa.float64(), null=True),  # mean over candidates, by the baseline in use
            column("advantage_after", pa.float64(), null=True),  # mean over those selected
            column("weighted_advantage", pa.float64()),  # sum over members of |weight * advantage|
            column("excluded", pa.string()),  # canonical JSON object: reason -> rows
        ]
    ),
    key=("module", "invocation_index"),
)
"""Per module and position: what became of its invocations."""
