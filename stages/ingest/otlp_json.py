"""OTLP-JSON (`resourceSpans`), as the OpenTelemetry collector's file exporter and OTLP over HTTP write it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from stages.ingest.guard import each
from stages.ingest.normal import Item
from stages.ingest.otel import RawEvent, RawSpan, items_of
from stages.ingest.read import Shape

NAME = "otlp_json"
SPLIT = ("resourceSpans", "resource_spans")
_SCOPES = ("scopeSpans", "scope_spans", "instrumentationLibrarySpans")
_FAILED = (2, "2", "STATUS_CODE_ERROR")


def recognises(value: Any, shape: Shape) -> bool:
    """An object with `resourceSpans`."""
    return isinstance(value, dict) and any(isinstance(value.get(key), list) for key in SPLIT)


def read(value: Mapping[str, Any], where: str) -> Iterator[Item]:
    """Every span of every scope."""
    resources = next((value[key] for key in SPLIT if value.get(key)), None)
    yield from each(resources, lambda resource: _of_resource(resource, where), where, "resource")


def _of_resource(resource: Mapping[str, Any], where: str) -> Iterator[Item]:
    scopes = next((resource[key] for key in _SCOPES if resource.get(key)), None)
    yield from each(scopes, lambda scope: _of_scope(scope, where), where, "scope")


def _of_scope(scope: Mapping[str, Any], where: str) -> Iterator[Item]:
    about = scope.get("scope") or scope.get("instrumentationLibrary")
    name = str(about.get("name") or "") if isinstance(about, dict) else ""
    yield from each(scope.get("spans"), lambda span: items_of(_raw(span, name, where)), where, "span")


def _raw(span: Mapping[str, Any], scope: str, where: str) -> RawSpan:
    status = span.get("status") or {}
    return RawSpan(
        trace=_either(span, "traceId", "trace_id"),
        span=_either(span, "spanId", "span_id"),
        parent=_either(span, "parentSpanId", "parent_span_id"),
        name=str(span.get("name") or ""),
        start=_either(span, "startTimeUnixNano", "start_time_unix_nano"),
        end=_either(span, "endTimeUnixNano", "end_time_unix_nano"),
        failed=status.get("code") in _FAILED,
        message=status.get("message"),
        attributes=plain(span.get("attributes") or []),
        events=[
            RawEvent(str(event.get("name") or ""), plain(event.get("attributes") or []))
            for event in span.get("events") or []
        ],
        scope=scope,
        where=where,
    )


def _either(span: Mapping[str, Any], *names: str) -> Any:
    return next((span[name] for name in names if span.get(name) is not None), None)


def plain(attributes: Any) -> dict[str, Any]:
    """OTLP's list of typed values as a dictionary; one that is a dictionary already stays."""
    if isinstance(attributes, dict):
        return dict(attributes)
    return {item["key"]: _value(item.get("value")) for item in attributes}


def _value(value: Any) -> Any:
    if not isinstance(value, dict):
        return value
    if "arrayValue" in value:
        return [_value(item) for item in (value["arrayValue"] or {}).get("values") or []]
    if "kvlistValue" in value:
        return plain((value["kvlistValue"] or {}).get("values") or [])
    if "intValue" in value:
        return int(value["intValue"])
    return next(iter(value.values()), None)
