"""The calls of a program run as rows: of the invocations table, and as a metric sees them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from schemas.canonical import canonical_json
from schemas.judge_calls import JUDGE_CALLS
from stages.programs.recorder import Invocation, Record, Recorder


def invocation_rows(recorder: Recorder) -> list[dict[str, Any]]:
    """Rows of the invocations table, by call_index."""
    records = recorder.records()
    rows = [
        {
            "rollout_id": recorder.rollout_id,
            "call_index": index,
            "module": record.invocation.module,
            "invocation_index": rank,
            "concurrent": recorder.concurrent(record.invocation),
            **_columns(record),
        }
        for index, (record, rank) in enumerate(zip(records, _ranks(records), strict=True))
    ]
    for row, extended in zip(rows, _extended(rows), strict=True):
        row["extends_call"] = extended
    return rows


def judge_rows(recorder: Recorder) -> list[dict[str, Any]]:
    """Rows of the judge_calls table, by call_index."""
    return [{name: row[name] for name in JUDGE_CALLS.schema.names} for row in invocation_rows(recorder)]


def call_views(recorder: Recorder) -> list[dict[str, Any]]:
    """The calls as a metric sees them."""
    records = recorder.records()
    return [_view(record, rank) for record, rank in zip(records, _ranks(records), strict=True)]


def _ranks(records: Sequence[Record]) -> Iterator[int]:
    """The invocation_index of each call: the rank of its invocation among those of its module."""
    ranks: dict[Invocation, int] = {}
    counts: dict[str, int] = {}
    for invocation in sorted({record.invocation for record in records}, key=lambda found: found.place):
        ranks[invocation] = counts.get(invocation.module, 0)
        counts[invocation.module] = ranks[invocation] + 1
    return (ranks[record.invocation] for record in records)


def _columns(record: Record) -> dict[str, Any]:
    """What a call alone decides. One that was never answered is `partial`: audit only."""
    sampling = record.sampling
    return {
        "attempt": record.attempt,
        "lm": record.lm,
        "inputs": record.invocation.inputs,
        "outputs": record.outputs,
        "messages": canonical_json(record.messages),
        "completion": None,
        "prompt_ids": None,
        "completion_ids": None,
        "sampling_logprobs": None,
        "finish_reason": "error",
        "parse_status": record.parse_status,
        "parsed_share": record.parsed_share,
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "top_k": sampling.top_k,
        "max_new_tokens": sampling.max_new_tokens,
        "seed": None,
        "logprob_kind": None,
        "adapter": None,
        "tokenizer": None,
        "template": None,
        "engine": None,
        "trainable": record.lm == "student",
        "fidelity": "partial",
        **record.origin,
        **record.answer,
    }


def _extended(rows: Sequence[dict[str, Any]]) -> Iterator[int | None]:
    """For each call, the earlier one with the longest prompt and completion that its prompt begins with."""
    wholes: list[list[int] | None] = []
    for row in rows:
        prompt = row["prompt_ids"]
        held = [
            (len(whole), -index)
            for index, whole in enumerate(wholes)
            if whole is not None and prompt is not None and prompt[: len(whole)] == whole
        ]
        yield -max(held)[1] if held else None
        wholes.append(None if row["completion_ids"] is None else [*prompt, *row["completion_ids"]])


def _view(record: Record, rank: int) -> dict[str, Any]:
    return {
        "module": record.invocation.module,
        "invocation_index": rank,
        "attempt": record.attempt,
        "lm": record.lm,
        "messages": [dict(message) for message in record.messages],
        "completion": record.completion,
        "value": record.value,
    }
