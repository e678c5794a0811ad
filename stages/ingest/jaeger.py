"""Traces as Jaeger's API and its page hand them out: `{data: [{traceID, spans}]}`. OpenTelemetry's attributes are tags.

https://www.jaegertracing.io/docs/latest/architecture/apis/
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from stages.ingest.guard import each
from stages.ingest.normal import Item
from stages.ingest.otel import RawEvent, RawSpan, items_of
from stages.ingest.shape import Shape
from stages.ingest.values import integer

NAME = "jaeger"
SPLIT = ("data",)
_SCOPES = ("otel.scope.name", "otel.library.name")


def recognises(value: Any, shape: Shape) -> bool:
    """A trace with spans, or an object of several."""
    if isinstance(value, Mapping) and isinstance(held := value.get("data"), list) and held:
        value = held[0]
    return isinstance(value, Mapping) and "traceID" in value and isinstance(value.get("spans"), list)


def read(value: Mapping[str, Any], where: str) -> Iterator[Item]:
    """Every span of every trace."""
    held = value.get("data")
    traces = held if isinstance(held, list) else [value]
    yield from each(traces, lambda trace: _trace(trace, where), where, "trace")


def _trace(trace: Mapping[str, Any], where: str) -> Iterator[Item]:
    yield from each(trace.get("spans"), lambda span: items_of(_raw(span, where)), where, "span")


def _raw(span: Mapping[str, Any], where: str) -> RawSpan:
    tags = _fields(span.get("tags"))
    start, took = integer(span.get("startTime")), integer(span.get("duration"))
    return RawSpan(
        trace=span.get("traceID"),
        span=span.get("spanID"),
        parent=_parent(span),
        name=str(span.get("operationName") or ""),
        start=start,
        end=None if start is None or took is None else start + took,
        failed=tags.get("error") is True or tags.get("otel.status_code") == "ERROR",
        message=tags.get("otel.status_description"),
        attributes=tags,
        events=[_event(_fields(log.get("fields"))) for log in span.get("logs") or []],
        scope=str(next((tags[name] for name in _SCOPES if tags.get(name)), "")),
        where=where,
    )


def _parent(span: Mapping[str, Any]) -> Any:
    """The span that this one is a child of; links to spans of other traces are none."""
    for held in span.get("references") or []:
        if held.get("refType") == "CHILD_OF" and held.get("traceID") in (None, span.get("traceID")):
            return held.get("spanID")
    return span.get("parentSpanID")


def _fields(listed: Any) -> dict[str, Any]:
    return {item["key"]: item.get("value") for item in listed or []}


def _event(fields: dict[str, Any]) -> RawEvent:
    return RawEvent(str(fields.pop("event", "")), fields)
