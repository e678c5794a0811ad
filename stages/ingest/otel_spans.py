"""OpenTelemetry spans as JSON objects, in the layouts of exporters and SDKs: one a line, or a list of them.

Flat (`trace_id`, `span_id`, `parent_span_id`), with a `context` as OpenTelemetry's Python SDK and Phoenix write them,
with a `spanContext` as its JavaScript SDK does, or as that prints them, or with the columns of Phoenix and Logfire; and
log records, as SDKs write them. GenAI, OpenInference, Langfuse and Vercel attributes are all read.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from stages.ingest.guard import each
from stages.ingest.normal import Item, Span
from stages.ingest.otel import RawEvent, RawSpan, items_of
from stages.ingest.otlp_json import plain
from stages.ingest.otlp_logs import RawRecord, items_of_record
from stages.ingest.phoenix import annotated, flat
from stages.ingest.phoenix import as_span as of_phoenix
from stages.ingest.shape import Shape
from stages.ingest.values import number, unpacked

NAME = "otel_spans"
SPLIT = ("spans",)
_FAILED = (2, "2", "ERROR", "STATUS_CODE_ERROR", "StatusCode.ERROR")
_CONTEXTS = ("context", "spanContext", "span_context", "_spanContext")
_STARTS = ("start_time", "startTime", "start_time_unix_nano", "startTimeUnixNano", "start_timestamp")
_ENDS = ("end_time", "endTime", "end_time_unix_nano", "endTimeUnixNano", "end_timestamp")
_STATUS = "otel_status_code"
_SEVERITIES = ("severity_number", "severityNumber", "severity_text", "severityText", "event_name", "eventName")
_PRINTED = ("traceId", "id", "attributes", "timestamp", "duration")
_PENDING = "pending_span"
"""What Logfire writes when a span starts, and again when it ends."""


def recognises(value: Any, shape: Shape) -> bool:
    """A span with ids and attributes, or an object that holds a list of such."""
    if not isinstance(value, Mapping):
        return False
    if (spans := _listed(value)) and isinstance(spans[0], Mapping):
        value = spans[0]
    value = _as_span(value)
    attributes = unpacked(value.get("attributes"))
    if isinstance(attributes, Mapping) and "mlflow.spanType" in attributes and spans is not None:
        return False  # MLflow's own table of traces
    return "attributes" in value and "run_type" not in value and None not in _ids(value)


def read(value: Mapping[str, Any], where: str) -> Iterator[Item]:
    """One span, or all of a list."""
    if (spans := _listed(value)) is not None:
        yield from each(spans, lambda span: _items(span, where), where, "span")
    else:
        yield from _items(value, where)


def _listed(value: Mapping[str, Any]) -> list[Any] | None:
    """The spans of an object that holds a list of them, or of a page of Phoenix's API."""
    found = value.get("spans", value.get("data") if "next_cursor" in value else None)
    return found if isinstance(found, list) else None


def _items(row: Mapping[str, Any], where: str) -> Iterator[Item]:
    if _is_record(row):
        yield from _of_record(row, where)
        return
    span = _as_span(row)
    if span.get("kind") == _PENDING:
        return
    for item in items_of(_raw(span, where)):
        yield item
        if isinstance(item, Span):
            yield from annotated(span, item.trace, None if item.parent is None else item.span, where)


def _as_span(row: Mapping[str, Any]) -> Mapping[str, Any]:
    """A row of a table as a span, and what the console exporter of OpenTelemetry's JavaScript SDK makes of one."""
    if not all(name in row for name in _PRINTED):
        return of_phoenix(row)
    start, took = number(row["timestamp"]), number(row["duration"])
    ends = {} if start is None or took is None else {"endTime": round(start + took)}
    return {**row, "spanId": row["id"], "startTime": row["timestamp"], **ends}


def _is_record(row: Mapping[str, Any]) -> bool:
    """Whether a row is a log record. Spans have a name, and no body."""
    return "body" in row and any(name in row for name in _SEVERITIES)


def _of_record(row: Mapping[str, Any], where: str) -> Iterator[Item]:
    raw = RawRecord(
        str(_either(row, "event_name", "eventName") or ""),
        row.get("body"),
        plain(unpacked(row.get("attributes")) or {}),
        _ids(row),
        _either(row, "timestamp", "time_unix_nano", "timeUnixNano", "observed_timestamp", "observedTimestamp"),
        where,
    )
    return items_of_record(raw)


def _ids(span: Mapping[str, Any]) -> tuple[Any, Any]:
    for name in _CONTEXTS:
        if isinstance(context := unpacked(span.get(name)), Mapping):
            return _either(context, "trace_id", "traceId"), _either(context, "span_id", "spanId")
    return _either(span, "trace_id", "traceId"), _either(span, "span_id", "spanId")


def _either(held: Mapping[str, Any], *names: str) -> Any:
    return next((held[name] for name in names if held.get(name) is not None), None)


def _raw(span: Mapping[str, Any], where: str) -> RawSpan:
    trace, own = _ids(span)
    status = unpacked(span.get("status"))
    status = status if isinstance(status, Mapping) else {"code": status or _either(span, "status_code", _STATUS)}
    parent = _either(span, "parent_span_id", "parentSpanId", "parent_id", "parentId")
    events = unpacked(_either(span, "span_events", "events", "otel_events") or [])
    scope = unpacked(span.get("scope") or span.get("instrumentationScope")) or {"name": span.get("otel_scope_name")}
    return RawSpan(
        trace=trace,
        span=own,
        parent=parent if parent is not None else (_ids({"context": span.get("parentSpanContext")})[1]),
        name=str(_either(span, "name", "span_name") or ""),
        start=_either(span, *_STARTS),
        end=_either(span, *_ENDS),
        failed=_either(status, "code", "status_code") in _FAILED,
        message=_either(status, "message", "description") or _either(span, "status_message", "otel_status_message"),
        attributes=flat(plain(unpacked(span.get("attributes")) or {}), span.get("span_kind")),
        events=[_event(event) for event in events if isinstance(event, Mapping)] if isinstance(events, list) else [],
        scope=str(scope.get("name") or "") if isinstance(scope, Mapping) else "",
        where=where,
    )


def _event(event: Mapping[str, Any]) -> RawEvent:
    return RawEvent(str(_either(event, "name", "event_name") or ""), plain(unpacked(event.get("attributes")) or {}))
