"""Rollouts (one row per program run) and invocations (one row per LM call)."""

from __future__ import annotations

import pyarrow as pa

from schemas.canonical import digest
from schemas.table import TableSpec, bounded, column, finite_lists, not_negative, one_of, same_length

STATUSES = ("ok", "parse_failed", "program_error", "metric_error", "timeout", "context_overflow", "engine_error")
"""How a program run ended. Everything but `ok` carries an `error`; `reward` is then null."""

NOT_OF_THE_PROGRAM = ("engine_error", "metric_error")
"""Statuses with which the machine or the metric failed, also after its retries: they say nothing of the model."""

PARSE_STATUSES = ("ok", "failed", "none")
"""Whether a completion had the expected form; `none` when the program asked for no parsing."""

FIDELITIES = ("exact", "ids", "text", "partial")
FINISH_REASONS = ("stop", "length", "context_overflow", "error")
LOGPROB_KINDS = ("processed", "raw")

TRANSFERS = ("ok", "not_rendered", "not_parsed", "not_encoded")
"""Whether a teacher's call can be trained in the student's prompt. `not_rendered`: its recorded inputs do not say what
the prompt was; `not_parsed`: the completion does not give the same values there; `not_encoded`: its text has no tokens
in the student's vocabulary that give it back."""

ROLLOUTS = TableSpec(
    name="rollouts",
    version=1,
    schema=pa.schema(
        [
            column("example_id", pa.string()),
            column("rollout_index", pa.int32()),
            column("rollout_id", pa.string()),
            column("iteration", pa.int32()),
            column("source", pa.string()),  # student | teacher:NAME | ingest:FORMAT
            column("policy", pa.string(), null=True),  # digest of the behaviour policy; null when unknown
            column("program", pa.string(), null=True),  # digest of the program artifact
            column("reward", pa.float64(), null=True),
            column("reward_parts", pa.string(), null=True),  # canonical JSON object of numbers
            column("status", pa.string()),
            column("error", pa.string(), null=True),
            column("output", pa.string(), null=True),  # canonical JSON
            column("seed", pa.int64(), null=True),
        ]
    ),
    key=("rollout_id",),
    rules=(one_of("status", STATUSES), bounded("reward"), not_negative("rollout_index"), not_negative("iteration")),
)

INVOCATIONS = TableSpec(
    name="invocations",
    version=3,
    schema=pa.schema(
        [
            column("rollout_id", pa.string()),
            column(
                "call_index", pa.int32()
            ),  # rank of the LM call in the rollout, retries included, branch after branch
            column("module", pa.string()),
            column("invocation_index", pa.int32()),  # rank among the module's calls, retries not counted
            column("attempt", pa.int32()),  # 0 for the first try of an invocation
            column("lm", pa.string()),  # "student" or the name of another LM of the recipe
            column("inputs", pa.string(), null=True),  # canonical JSON object, structured inputs
            column("outputs", pa.string(), null=True),  # canonical JSON, the parsed value
            column("messages", pa.string()),  # canonical JSON list of chat messages, as sent
            column("completion", pa.string(), null=True),
            column("prompt_ids", pa.list_(pa.int32()), null=True),
            column("completion_ids", pa.list_(pa.int32()), null=True),  # ends with eos when finish_reason is stop
            column("sampling_logprobs", pa.list_(pa.float32()), null=True),
            column("finish_reason", pa.string(), null=True),
            column("parse_status", pa.string()),
            column("parsed_share", pa.float64(), null=True),  # share of expected fields parsed, in [0, 1]
            column("temperature", pa.float64(), null=True),
            column("top_p", pa.float64(), null=True),
            column("top_k", pa.int32(), null=True),
            column("max_new_tokens", pa.int32(), null=True),
            column("seed", pa.int64(), null=True),
            column("logprob_kind", pa.string(), null=True),
            column("adapter", pa.string(), null=True),  # digest of the adapter served; null without one
            column("tokenizer", pa.string(), null=True),  # digest
            column("template", pa.string(), null=True),  # digest
            column("engine", pa.string(), null=True),
            column("trainable", pa.bool_()),
            column("concurrent", pa.bool_()),  # the module's calls have no certain order: invocation_index is of chance
            column("extends_call", pa.int32(), null=True),  # longest earlier call that the prompt begins with, in ids
            column("fidelity", pa.string()),
            # What the student would have been sent where a teacher was sent something else; null for the student:
            column("student_messages", pa.string(), null=True),  # canonical JSON, as `messages`
            column("student_prompt_ids", pa.list_(pa.int32()), null=True),
            column("student_temperature", pa.float64(), null=True),  # that the student would have been sampled with
            column("transfer", pa.string(), null=True),  # whether a teacher's completion can be trained in that prompt
        ]
    ),
    key=("rollout_id", "call_index"),
    rules=(
        one_of("parse_status", PARSE_STATUSES),
        one_of("finish_reason", FINISH_REASONS),
        one_of("logprob_kind", LOGPROB_KINDS),
        one_of("fidelity", FIDELITIES),
        one_of("transfer", TRANSFERS),
        bounded("parsed_share", 0.0, 1.0),
        same_length("completion_ids", "sampling_logprobs"),
        finite_lists("sampling_logprobs"),
        not_negative("call_index"),
        not_negative("invocation_index"),
        not_negative("attempt"),
        not_negative("extends_call"),
    ),
)


def rollout_id(
    *, program: str | None, policy: str | None, source: str, seed: int, iteration: int, example_id: str, index: int
) -> str:
    """The identity of a program run: 20 hex digits, unique over runs, iterations and sources."""
    return digest([program, policy, source, seed, iteration, example_id, index])[:20]
