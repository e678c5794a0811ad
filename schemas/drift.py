"""Drift: what an evaluation's calls and a fixed set of prompts say of how far a policy is from the base."""

from __future__ import annotations

import pyarrow as pa

from schemas.rollouts import FINISH_REASONS
from schemas.table import TableSpec, bounded, column, not_negative, one_of

DRIFT = TableSpec(
    name="drift",
    version=1,
    schema=pa.schema(
        [
            column("example_id", pa.string()),
            column("sample", pa.int32()),
            column("rollout_id", pa.string()),
            column("call_index", pa.int32()),
            column("module", pa.string()),
            column("invocation_index", pa.int32()),
            column("tokens", pa.int32()),  # of the completion
            # Means over its tokens, in nats, at the temperature that it was sampled with (1 where that was greedy):
            column("kl_to_base", pa.float64()),  # KL(policy || base) over the whole vocabulary; 0 for the base itself
            column("entropy", pa.float64()),  # of the policy
        ]
    ),
    key=("rollout_id", "call_index"),
    rules=(not_negative("sample"), not_negative("tokens"), bounded("kl_to_base", 0.0), bounded("entropy", 0.0)),
)
"""One row per completion that was scored, sorted by (example_id, sample, call_index)."""

CANARIES = TableSpec(
    name="canaries",
    version=1,
    schema=pa.schema(
        [
            column("canary_id", pa.string()),
            column("module", pa.string()),  # one that the adapter serves; "*" where it serves all
            column("messages", pa.string()),  # canonical JSON list of chat messages
            column("prompt_ids", pa.list_(pa.int32())),
            column("completion", pa.string(), null=True),  # null: the prompt left no room for one
            column("completion_ids", pa.list_(pa.int32()), null=True),
            column("finish_reason", pa.string()),
            column("same", pa.bool_(), null=True),  # as the base's; null where either has no completion
            column("kl_to_base", pa.float64(), null=True),  # as in the drift table; null without token ids
            column("entropy", pa.float64(), null=True),
        ]
    ),
    key=("canary_id", "module"),
    rules=(one_of("finish_reason", FINISH_REASONS), bounded("kl_to_base", 0.0), bounded("entropy", 0.0)),
)
"""Greedy completions of prompts that never change, one by each adapter of the policy."""
