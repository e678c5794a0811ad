"""OTLP-JSON (`resourceSpans`), as the OpenTelemetry collector's file exporter and OTLP over HTTP write it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from stages.ingest.normal import Item
from stages.ingest.otel import RawEvent, RawSpan, items_of
from stages.ingest.read import Shape

NAME = "otlp_json"
SPLIT = ("resourceSpans", "resource_spans")
_FAILED = (2, "2", "STATUS_CODE_ERROR")


def recognises(value: Any, shape: Shape) -> bool:
    """An object with `resourceSpans`."""
    return isinstance(value, Mapping) and any(isinstance(value.get(key), list) for key in SPLIT)


def read(value: Mapping[str, Any], where: str) -> Iterator[Item]:
    """Every span of every scope."""
    for resource in value.get("resourceSpans") or value.get("resource_spans") or []:
        for scope in resource.get("scopeSpans") or resource.get("instrumentationLibrarySpans") or []:
            name = (scope.get("scope") or scope.get("instrumentationLibrary") or {}).get("name") or ""
            for span in scope.get("spans") or []:
                yield from items_of(_raw(span, name, where))


def _raw(span: Mapping[str, Any], scope: str, where: str) -> RawSpan:
    status = span.get("status") or {}
    return RawSpan(
        trace=span.get("traceId"),
        span=span.get("spanId"),
        parent=span.get("parentSpanId"),
        name=span.get("name") or "",
        start=span.get("startTimeUnixNano"),
        end=span.get("endTimeUnixNano"),
        failed=status.get("code") in _FAILED,
        message=status.get("message"),
        attributes=plain(span.get("attributes") or []),
        events=[
            RawEvent(event.get("name") or "", plain(event.get("attributes") or []))
            for event in span.get("events") or []
        ],
        scope=scope,
        where=where,
    )


def plain(attributes: Any) -> dict[str, Any]:
    """OTLP's list of typed values as a dictionary; one that is a dictionary already stays."""
    if isinstance(attributes, Mapping):
        return dict(attributes)
    return {item["key"]: _value(item.get("value")) for item in attributes}


def _value(value: Any) -> Any:
    if not isinstance(value, Mapping):
        return value
    if "arrayValue" in value:
        return [_value(item) for item in (value["arrayValue"] or {}).get("values") or []]
    if "kvlistValue" in value:
        return plain((value["kvlistValue"] or {}).get("values") or [])
    if "intValue" in value:
        return int(value["intValue"])
    return next(iter(value.values()), None)
