"""Captured runs: what a production program writes of itself, one row a step, call or score, in traces' normal form.

Light on purpose: it is imported by programs that have nothing but pyarrow.
"""

from __future__ import annotations

import pyarrow as pa

from schemas.table import TableSpec, column

MARK = "mmgrpo_capture"
"""The column by which a file of captured runs is known; it holds the version."""

CAPTURE = TableSpec(
    name="capture",
    version=1,
    schema=pa.schema(
        [
            column(MARK, pa.int32()),
            column("record", pa.string()),  # span | score
            column("trace", pa.string()),
            column("span", pa.string(), null=True),  # null: a score of the whole trace
            column("name", pa.string()),  # of the step, or of the score
            # Of spans:
            column("parent", pa.string(), null=True),
            column("kind", pa.string(), null=True),  # chain | llm
            column("start", pa.int64(), null=True),  # nanoseconds since 1970; of a call told of later: at the earliest
            column("end", pa.int64(), null=True),
            column("order", pa.int32(), null=True),
            column("error", pa.string(), null=True),
            column("signature", pa.string(), null=True),
            column("module", pa.string(), null=True),
            column("invocation_index", pa.int32(), null=True),
            column("attempt", pa.int32(), null=True),
            column("policy", pa.string(), null=True),
            column("inputs", pa.string(), null=True),  # JSON
            column("outputs", pa.string(), null=True),  # JSON
            column("example", pa.string(), null=True),
            column("user", pa.string(), null=True),
            column("metadata", pa.string(), null=True),  # JSON object
            # Of LM calls; null in other spans:
            column("messages", pa.string(), null=True),  # JSON list of chat messages, as sent
            column("completion", pa.string(), null=True),
            column("tool_calls", pa.string(), null=True),  # JSON list
            column("reasoning", pa.string(), null=True),
            column("tools", pa.bool_(), null=True),
            column("finish_reason", pa.string(), null=True),
            column("model", pa.string(), null=True),
            column("temperature", pa.float64(), null=True),
            column("top_p", pa.float64(), null=True),
            column("top_k", pa.int64(), null=True),
            column("max_new_tokens", pa.int64(), null=True),
            column("seed", pa.int64(), null=True),
            column("cached", pa.bool_(), null=True),
            column("choices", pa.int32(), null=True),  # how many answers there were; the first stands here
            column("prompt_ids", pa.list_(pa.int32()), null=True),
            column("completion_ids", pa.list_(pa.int32()), null=True),
            column("logprobs", pa.list_(pa.float64()), null=True),
            column("logprob_kind", pa.string(), null=True),
            # Of scores:
            column("value", pa.float64(), null=True),
            column("source", pa.string(), null=True),
        ]
    ),
    key=("trace", "span", "name"),
)

JSON_COLUMNS = ("inputs", "outputs", "metadata", "messages", "tool_calls")
CALL_COLUMNS = tuple(CAPTURE.schema.names[CAPTURE.schema.names.index("messages") : -2])
"""Columns of a call, named as the fields of the normal form's."""
