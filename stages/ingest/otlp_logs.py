"""Log records of OpenTelemetry that tell of LM calls: what some SDKs log apart from the spans, joined to them by id.

Newer conventions tell of a call in one event, older ones in one event for each message, which `told` puts together when
the trace is whole. Other log records say nothing of calls.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from stages.ingest import conventions_genai
from stages.ingest.conventions import mmgrpo_fields
from stages.ingest.normal import NOT_EXPORTED, Item, Refused, Span
from stages.ingest.otel import EVALUATION, evaluation, span_id, trace_id
from stages.ingest.values import nanoseconds, unpacked

WHOLE_CALL = "gen_ai.client.inference.operation.details"
_MESSAGES = frozenset(f"gen_ai.{said}" for said in ("system.message", "user.message", "assistant.message"))
MESSAGES = _MESSAGES | {"gen_ai.tool.message", "gen_ai.choice", "gen_ai.content.prompt", "gen_ai.content.completion"}


_FIELDS = frozenset({"role", "content", "message", "gen_ai.input.messages", "gen_ai.output.messages"})


@dataclass(frozen=True, slots=True)
class RawRecord:
    """A log record as a file has it: ids and times not read yet, body and attributes as plain values."""

    name: str
    body: Any
    attributes: Mapping[str, Any]
    ids: tuple[Any, Any]
    time: Any
    where: str


def _body(body: Any) -> Mapping[str, Any]:
    """The fields of a record's body: an object, its JSON, as Python's logging makes of it, or a text."""
    found = unpacked(body)
    if isinstance(found, Mapping) and (isinstance(body, Mapping) or not _FIELDS.isdisjoint(found)):
        return found
    return {} if body is None else {"content": body}


def items_of_record(raw: RawRecord) -> Iterator[Item]:
    """What a log record says of a call: a record of the call's span, or a score; nothing of other records."""
    name, where = raw.name or str(raw.attributes.get("event.name") or ""), raw.where
    if name not in (WHOLE_CALL, EVALUATION) and name not in MESSAGES:
        return
    held = {**raw.attributes, **_body(raw.body)}
    trace, span = trace_id(raw.ids[0]), span_id(raw.ids[1])
    if trace is None or (span is None and name != EVALUATION):
        yield Refused("no_trace_id" if trace is None else "no_span_id", f"the event '{name}' has none", where, trace)
    elif name == EVALUATION:
        yield evaluation(held, trace, span, where)
    elif span is not None and name == WHOLE_CALL:
        found = conventions_genai.findings("", {"gen_ai.operation.name": "chat", **held}, [], "")
        more = mmgrpo_fields(held)
        yield Span(trace, span, NOT_EXPORTED, "llm", start=nanoseconds(raw.time), call=found.call, where=where, **more)
    elif span is not None:
        told = {"name": name, "time": nanoseconds(raw.time), "said": held}
        yield Span(trace, span, NOT_EXPORTED, "llm", told=(told,), where=where, **mmgrpo_fields(held))
