"""Judge calls: the LM calls that a metric made. They belong to no module, and are never grouped or trained."""

from __future__ import annotations

import pyarrow as pa

from schemas.rollouts import FINISH_REASONS, PARSE_STATUSES
from schemas.table import TableSpec, bounded, column, not_negative, one_of

JUDGE_CALLS = TableSpec(
    name="judge_calls",
    version=1,
    schema=pa.schema(
        [
            column("rollout_id", pa.string()),  # of the program run that was judged
            column("call_index", pa.int32()),  # rank of the call among those of its metric, retries included
            column("module", pa.string()),  # the metric's name for it; the signature of a DSPy predictor
            column("invocation_index", pa.int32()),
            column("attempt", pa.int32()),
            column("lm", pa.string()),
            column("outputs", pa.string(), null=True),  # canonical JSON, the parsed value
            column("messages", pa.string()),  # canonical JSON list of chat messages, as sent
            column("completion", pa.string(), null=True),  # null: never answered
            column("finish_reason", pa.string()),
            column("parse_status", pa.string()),
            column("parsed_share", pa.float64(), null=True),
            column("temperature", pa.float64()),
            column("top_p", pa.float64(), null=True),
            column("top_k", pa.int32(), null=True),
            column("max_new_tokens", pa.int32()),
            column("seed", pa.int64(), null=True),
            column("engine", pa.string(), null=True),
        ]
    ),
    key=("rollout_id", "call_index"),
    rules=(
        one_of("parse_status", PARSE_STATUSES),
        one_of("finish_reason", FINISH_REASONS),
        bounded("parsed_share", 0.0, 1.0),
        not_negative("call_index"),
        not_negative("invocation_index"),
        not_negative("attempt"),
    ),
)
