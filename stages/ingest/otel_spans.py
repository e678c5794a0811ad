"""OpenTelemetry spans as JSON objects, in the layouts of exporters and SDKs: one a line, or a list of them.

Flat (`trace_id`, `span_id`, `parent_span_id`), with a `context` as OpenTelemetry's Python SDK and Phoenix write them,
or with a `spanContext` as its JavaScript SDK does. GenAI, OpenInference and Vercel attributes are all read.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from stages.ingest.normal import Item
from stages.ingest.otel import RawEvent, RawSpan, items_of
from stages.ingest.otlp_json import plain
from stages.ingest.read import Shape
from stages.ingest.values import unpacked

NAME = "otel_spans"
SPLIT = ("spans",)
_FAILED = (2, "2", "ERROR", "STATUS_CODE_ERROR", "StatusCode.ERROR")
_CONTEXTS = ("context", "spanContext", "span_context", "_spanContext")


def recognises(value: Any, shape: Shape) -> bool:
    """A span with ids and attributes, or an object that holds a list of such."""
    if not isinstance(value, Mapping):
        return False
    spans = value.get("spans")
    if isinstance(spans, list) and spans and isinstance(spans[0], Mapping):
        value = spans[0]
    return "attributes" in value and _ids(value)[0] is not None


def read(value: Mapping[str, Any], where: str) -> Iterator[Item]:
    """One span, or all of a list."""
    if isinstance(spans := value.get("spans"), list):
        for span in spans:
            yield from items_of(_raw(span, where))
    else:
        yield from items_of(_raw(value, where))


def _ids(span: Mapping[str, Any]) -> tuple[Any, Any]:
    for name in _CONTEXTS:
        if isinstance(context := unpacked(span.get(name)), Mapping):
            return _either(context, "trace_id", "traceId"), _either(context, "span_id", "spanId")
    return _either(span, "trace_id", "traceId"), _either(span, "span_id", "spanId")


def _either(held: Mapping[str, Any], *names: str) -> Any:
    return next((held[name] for name in names if held.get(name) is not None), None)


def _raw(span: Mapping[str, Any], where: str) -> RawSpan:
    trace, own = _ids(span)
    status = span.get("status")
    status = status if isinstance(status, Mapping) else {"code": status or span.get("status_code")}
    code = _either(status, "code", "status_code")
    parent = _either(span, "parent_span_id", "parentSpanId", "parent_id", "parentId")
    events = _either(span, "span_events", "events") or []
    scope = span.get("scope") or span.get("instrumentationScope") or {}
    return RawSpan(
        trace=trace,
        span=own,
        parent=parent if parent is not None else (_ids({"context": span.get("parentSpanContext")})[1]),
        name=str(span.get("name") or ""),
        start=_either(span, "start_time", "startTime", "start_time_unix_nano", "startTimeUnixNano"),
        end=_either(span, "end_time", "endTime", "end_time_unix_nano", "endTimeUnixNano"),
        failed=code in _FAILED,
        message=_either(status, "message", "description") or span.get("status_message"),
        attributes=_flat(plain(unpacked(span.get("attributes")) or {})),
        events=[_event(event) for event in unpacked(events)],
        scope=str(scope.get("name") or "") if isinstance(scope, Mapping) else "",
        where=where,
    )


def _event(event: Mapping[str, Any]) -> RawEvent:
    return RawEvent(str(_either(event, "name", "event_name") or ""), plain(unpacked(event.get("attributes")) or {}))


def _flat(attributes: dict[str, Any]) -> dict[str, Any]:
    """Attributes with dotted keys. Phoenix's Parquet export nests them."""
    if not any(
        isinstance(value, Mapping) and key in ("llm", "input", "openinference", "gen_ai")
        for key, value in attributes.items()
    ):
        return attributes
    found: dict[str, Any] = {}

    def walk(prefix: str, value: Any) -> None:
        if isinstance(value, Mapping):
            for key, item in value.items():
                walk(f"{prefix}.{key}" if prefix else key, item)
        elif value is not None:
            found[prefix] = value

    walk("", attributes)
    return found
