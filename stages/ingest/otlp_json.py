"""OTLP-JSON, as the OpenTelemetry collector's file exporter and OTLP over HTTP write it.

`resourceSpans`, and the log records of `resourceLogs`. Metrics say nothing of traces.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

from stages.ingest.guard import each
from stages.ingest.normal import Item
from stages.ingest.otel import RawEvent, RawSpan, items_of
from stages.ingest.otlp_logs import RawRecord, items_of_record
from stages.ingest.shape import Shape

NAME = "otlp_json"
_TYPES = frozenset(f"{kind}Value" for kind in ("string", "int", "double", "bool", "array", "kvlist", "bytes"))
_SPANS, _LOGS = ("resourceSpans", "resource_spans", "batches"), ("resourceLogs", "resource_logs")
SPLIT = (*_SPANS, *_LOGS)
_SCOPES = ("scopeSpans", "scope_spans", "instrumentationLibrarySpans")
_FAILED = (2, "2", "STATUS_CODE_ERROR")


def recognises(value: Any, shape: Shape) -> bool:
    """An object with `resourceSpans` or `resourceLogs`, or one that Tempo's API wraps around them."""
    value = _unwrapped(value)
    if not isinstance(value, dict) or not any(isinstance(value.get(key), list) for key in SPLIT):
        return False
    held = value.get("batches")
    return held is None or not held or (isinstance(held[0], dict) and any(key in held[0] for key in _SCOPES))


def read(value: Mapping[str, Any], where: str) -> Iterator[Item]:
    """Every span and log record of every scope."""
    value = _unwrapped(value)
    for keys, reader in ((_SPANS, _of_resource), (_LOGS, _of_logs)):
        resources = next((value[key] for key in keys if value.get(key)), None)
        yield from each(resources, partial(reader, where=where), where, "resource")


def _unwrapped(value: Any) -> Any:
    return value["trace"] if isinstance(value, Mapping) and set(value) == {"trace"} else value


def _of_resource(resource: Mapping[str, Any], where: str) -> Iterator[Item]:
    scopes = next((resource[key] for key in _SCOPES if resource.get(key)), None)
    yield from each(scopes, lambda scope: _of_scope(scope, where), where, "scope")


def _of_scope(scope: Mapping[str, Any], where: str) -> Iterator[Item]:
    about = scope.get("scope") or scope.get("instrumentationLibrary")
    name = str(about.get("name") or "") if isinstance(about, dict) else ""
    yield from each(scope.get("spans"), lambda span: items_of(_raw(span, name, where)), where, "span")


def _of_logs(resource: Mapping[str, Any], where: str) -> Iterator[Item]:
    scopes = next((resource[key] for key in ("scopeLogs", "scope_logs") if resource.get(key)), None)
    yield from each(scopes, lambda scope: _of_records(scope, where), where, "scope")


def _of_records(scope: Mapping[str, Any], where: str) -> Iterator[Item]:
    records = next((scope[key] for key in ("logRecords", "log_records") if scope.get(key)), None)
    yield from each(records, lambda record: _of_record(record, where), where, "record")


def _of_record(record: Mapping[str, Any], where: str) -> Iterator[Item]:
    raw = RawRecord(
        str(_either(record, "eventName", "event_name") or ""),
        _value(record.get("body")),
        plain(record.get("attributes") or []),
        (_either(record, "traceId", "trace_id"), _either(record, "spanId", "span_id")),
        _either(record, "timeUnixNano", "time_unix_nano", "observedTimeUnixNano", "observed_time_unix_nano"),
        where,
    )
    return items_of_record(raw)


def _raw(span: Mapping[str, Any], scope: str, where: str) -> RawSpan:
    status, get = span.get("status") or {}, span.get
    events = get("events")
    return RawSpan(  # by place: by name takes three times as long
        found if (found := get("traceId")) is not None else get("trace_id"),
        found if (found := get("spanId")) is not None else get("span_id"),
        found if (found := get("parentSpanId")) is not None else get("parent_span_id"),
        str(get("name") or ""),
        found if (found := get("startTimeUnixNano")) is not None else get("start_time_unix_nano"),
        found if (found := get("endTimeUnixNano")) is not None else get("end_time_unix_nano"),
        status.get("code") in _FAILED,
        status.get("message"),
        plain(get("attributes") or []),
        [RawEvent(str(event.get("name") or ""), plain(event.get("attributes") or [])) for event in events]
        if events
        else (),
        scope,
        where,
    )


def _either(span: Mapping[str, Any], *names: str) -> Any:
    for name in names:
        if (found := span.get(name)) is not None:
            return found
    return None


def plain(attributes: Any) -> dict[str, Any]:
    """OTLP's list of typed values as a dictionary; one that is a dictionary already stays, its values unwrapped."""
    if isinstance(attributes, dict):
        return {name: _value(value) if _is_typed(value) else value for name, value in attributes.items()}
    return {
        item["key"]: value["stringValue"]
        if type(value := item.get("value")) is dict and len(value) == 1 and "stringValue" in value
        else _value(value)
        for item in attributes
    }


def _is_typed(value: Any) -> bool:
    return isinstance(value, dict) and len(value) == 1 and not _TYPES.isdisjoint(value)


def _camel(name: str) -> str:
    first, _, rest = name.partition("_")
    return first + rest.title()


def _value(value: Any) -> Any:
    if not isinstance(value, dict):
        return value
    if len(value) > 1:  # as Phoenix's API writes it: every type, with nothing in those that it is not
        value = {_camel(name): held for name, held in value.items() if held is not None}
    if "arrayValue" in value:
        return [_value(item) for item in (value["arrayValue"] or {}).get("values") or []]
    if "kvlistValue" in value:
        return plain((value["kvlistValue"] or {}).get("values") or [])
    if "intValue" in value:
        return int(value["intValue"])
    return next(iter(value.values()), None)
