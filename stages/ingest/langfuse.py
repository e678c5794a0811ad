"""Langfuse: a trace with its observations as the API and the UI export it, rows of its exports, and ingestion batches.

Rows are observations, traces or scores; their keys are in camel case from the API and in snake case from exports.
Langfuse's trace is no span: it becomes the root, with its own input and output, above the observations without parent.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from stages.ingest.guard import each
from stages.ingest.langfuse_calls import KINDS, agent_of, attributes_of, call_of_generation
from stages.ingest.normal import NOT_EXPORTED, Item, Refused, Score, Span
from stages.ingest.shape import Shape
from stages.ingest.values import identity, nanoseconds, number, text, unpacked

NAME = "langfuse"
_EVENTS = {"generation": "GENERATION", "span": "SPAN", "event": "EVENT", "observation": None}
_OWN = ("attributes", "resourceAttributes", "scope")
"""What Langfuse keeps in a trace's metadata of the OpenTelemetry span that it was."""
_TRACES = ("projectId", "project_id", "bookmarked", "public")


def recognises(value: Any, shape: Shape) -> bool:
    """A trace and its observations, one row of an export, a page of the API, or a batch of events."""
    if not isinstance(value, Mapping):
        return False
    if isinstance(batch := value.get("batch"), list):
        return bool(batch) and isinstance(batch[0], Mapping) and "body" in batch[0] and "type" in batch[0]
    if isinstance(page := value.get("data"), list) and isinstance(value.get("meta"), Mapping):
        return bool(page) and recognises(page[0], shape)
    if isinstance(value.get("observations"), list):
        held = value.get("trace", value)
        return isinstance(held, Mapping) and "id" in held
    return _row(value) is not None


def read(value: Mapping[str, Any], where: str) -> Iterator[Item]:
    """What a value holds: a trace with all below it, or one row."""
    if isinstance(value.get("batch"), list):
        yield from each(value["batch"], lambda event: _event(event, where), where, "event")
    elif isinstance(value.get("data"), list) and "meta" in value:
        yield from each(value["data"], lambda row: read(row, where), where, "row")
    elif isinstance(value.get("observations"), list):
        yield from _trace(value, where)
    elif (reader := _row(value)) is not None:
        yield from reader(value, where)
    else:
        yield Refused("broken", "neither a trace nor an observation nor a score", where)


def _row(value: Mapping[str, Any]) -> Any:
    """The reader of a row, by its columns."""
    trace = _get(value, "traceId", "trace_id")
    if trace is not None and str(value.get("type")) in KINDS and _get(value, "startTime", "start_time") is not None:
        return _observation
    if trace is not None and "value" in value and "name" in value and ("dataType" in value or "data_type" in value):
        return _score
    trace_like = "id" in value and "timestamp" in value and "input" in value and "output" in value
    return _root if trace_like and any(name in value for name in _TRACES) else None


def _get(held: Mapping[str, Any], *names: str) -> Any:
    return next((held[name] for name in names if held.get(name) not in (None, "")), None)


def _trace(value: Mapping[str, Any], where: str) -> Iterator[Item]:
    trace = value.get("trace", value)
    listed = value["observations"]
    trace_id = identity(trace.get("id"))
    whole = [item for item in listed if isinstance(item, Mapping)]
    tops = [item for item in whole if _get(item, "parentObservationId", "parent_observation_id") is None]
    # A trace that logs no input of its own has that of the one step that it consists of.
    only = tops[0] if len(tops) == 1 else {}
    filled = {name: trace.get(name) if trace.get(name) is not None else only.get(name) for name in ("input", "output")}
    yield from _root({**trace, **filled}, where)
    if whole or not listed:  # the API lists traces with the ids of their observations alone
        reader = {"traceId": trace_id}
        yield from each(listed, lambda item: _observation({**reader, **item}, where), where, "observation", trace_id)
    scores = [item for item in trace.get("scores") or [] if isinstance(item, Mapping)]
    yield from each(scores, lambda item: _score({"traceId": trace_id, **item}, where), where, "score", trace_id)


def _event(event: Mapping[str, Any], where: str) -> Iterator[Item]:
    """One event of an ingestion batch; several of one observation are parts of it.

    One that updates an observation need not say again what that stands below.
    """
    kind, _, _ = str(event.get("type")).partition("-")
    body = event["body"]
    if kind == "trace":
        yield from _root({"timestamp": event.get("timestamp"), **body}, where)
    elif kind == "score":
        yield from _score(body, where)
    elif kind in _EVENTS:
        above = {"parentObservationId": NOT_EXPORTED} if str(event.get("type")).endswith("-update") else {}
        yield from _observation({"type": _EVENTS[kind] or body.get("type"), **above, **body}, where)


def _root(trace: Mapping[str, Any], where: str) -> Iterator[Item]:
    own = identity(trace.get("id"))
    if own is None:
        yield Refused("no_trace_id", "the trace has no id", where)
        return
    session = text(_get(trace, "sessionId", "session_id"))
    metadata = {name: value for name, value in _metadata(trace).items() if name not in _OWN}
    yield Span(
        own,
        own,
        kind="chain",
        name=str(trace.get("name") or ""),
        start=nanoseconds(trace.get("timestamp")),
        inputs=unpacked(trace.get("input")),
        outputs=unpacked(trace.get("output")),
        user=text(_get(trace, "userId", "user_id")),
        metadata={**metadata, **({"session": session} if session else {})},
        where=where,
    )


def _observation(held: Mapping[str, Any], where: str) -> Iterator[Item]:
    trace, own = identity(_get(held, "traceId", "trace_id")), identity(held.get("id"))
    if trace is None or own is None:
        yield Refused("no_trace_id" if trace is None else "no_span_id", "an observation has none", where)
        return
    kind = KINDS.get(str(held.get("type")), "other")
    metadata = _metadata(held)
    failed = held.get("level") == "ERROR"
    yield Span(
        trace,
        own,
        identity(_get(held, "parentObservationId", "parent_observation_id")) or trace,
        kind,
        str(held.get("name") or ""),
        nanoseconds(_get(held, "startTime", "start_time")),
        nanoseconds(_get(held, "endTime", "end_time")),
        error=str(_get(held, "statusMessage", "status_message") or "failed") if failed else None,
        agent=agent_of(str(held.get("name") or ""), kind, metadata, own_sdk=_of_own_sdk(metadata)),
        module=text(attributes_of(metadata).get("mmgrpo.module")),
        inputs=unpacked(held.get("input")),
        outputs=unpacked(held.get("output")),
        call=call_of_generation(held, metadata) if kind == "llm" else None,
        where=where,
    )


def _metadata(held: Mapping[str, Any]) -> Mapping[str, Any]:
    found = unpacked(held.get("metadata"))
    return found if isinstance(found, Mapping) else {}


def _of_own_sdk(metadata: Mapping[str, Any]) -> bool:
    scope = metadata.get("scope")
    return isinstance(scope, Mapping) and str(scope.get("name")).startswith("langfuse")


def _score(held: Mapping[str, Any], where: str) -> Iterator[Item]:
    trace = identity(_get(held, "traceId", "trace_id"))
    if trace is None:
        yield Refused("no_trace_id", f"the score '{held.get('name')}' has none", where)
        return
    span = identity(_get(held, "observationId", "observation_id"))
    yield Score(
        trace, str(held.get("name") or "score"), number(held.get("value")), span, text(held.get("source")), where
    )
