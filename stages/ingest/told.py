"""Calls whose messages were logged as events apart from their spans, put together from those events."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

from schemas.canonical import canonical_json
from stages.ingest.genai_messages import asked_and_said
from stages.ingest.normal import Call, Span
from stages.ingest.requests import Request, call_of


class _Event(NamedTuple):
    name: str
    attributes: Mapping[str, Any]


def joined(span: Span, records: Iterable[Span]) -> Span:
    """A span with the call that the events of its records tell of, in the order of their times, each once."""
    every = {canonical_json(told): told for record in records for told in record.told}
    if not every:
        return span
    events = [every[text] for text in sorted(every, key=lambda text: (every[text]["time"] or 0, text))]
    prompt, answer = asked_and_said({}, [_Event(told["name"], told["said"]) for told in events])
    made = call_of(Request(prompt), answer)
    if any(told.get("redacted") for told in events):
        made = replace(made, redacted=True)
    start = min((told["time"] for told in events if told["time"] is not None), default=None)
    call = made if span.call is None else _filled(span.call, made)
    return replace(span, told=(), kind="llm", call=call, start=start if span.start is None else span.start)


def _filled(call: Call, told: Call) -> Call:
    """A call as its span has it, what was said from the events where the span does not say."""
    names = ("messages", "completion", "tool_calls", "reasoning", "finish_reason", "model")
    lacking = {name: getattr(told, name) for name in names if getattr(call, name) in (None, "", ())}
    filled = replace(call, **lacking, choices=max(call.choices, told.choices))
    if not told.redacted:
        return filled
    return replace(filled, redacted=True, prompt_ids=None, completion_ids=None, logprobs=None, logprob_kind=None)
