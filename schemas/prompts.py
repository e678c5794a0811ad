"""Trials: one row per scoring of candidate prompts, made by the prompts stage."""

from __future__ import annotations

import pyarrow as pa

from schemas.table import TableSpec, column, not_negative, one_of

KINDS = ("full", "minibatch")
"""Whether a trial scored on all validation examples that the optimizer uses, or on a few examples."""

TRIALS = TableSpec(
    name="trials",
    version=1,
    schema=pa.schema(
        [
            column("trial", pa.int32()),  # in the order in which they were begun
            column("optimizer", pa.string()),
            column("kind", pa.string()),
            column("examples", pa.int32()),
            column("failed", pa.int32()),  # program runs among them that failed; each counts as 0
            column("score", pa.float64(), null=True),  # mean over the examples; null when the trial was broken off
            column("state", pa.string()),  # digest of the candidate: instructions and demonstrations
            column("instructions", pa.string()),  # canonical JSON object: module -> instructions
            column("instructions_digest", pa.string()),
            column("demos", pa.string()),  # canonical JSON object: module -> number of demonstrations
            column("demos_digest", pa.string()),
            column("calls", pa.int32()),  # LM calls of its program runs
            column("new_calls", pa.int32()),  # those whose answer was not known from an earlier equal call
            column("prompt_tokens", pa.int64(), null=True),  # of the new calls; null for LMs that do not tell
            column("completion_tokens", pa.int64(), null=True),
        ]
    ),
    key=("trial",),
    rules=(one_of("kind", KINDS), not_negative("trial"), not_negative("calls"), not_negative("new_calls")),
)
