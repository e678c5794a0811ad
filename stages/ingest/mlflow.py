"""MLflow traces: `{info, data: {spans}}` as `Trace.to_json` writes them, of schema 2 or 3, and rows of `search_traces`.

Every attribute of a span is JSON of its own. A DSPy predictor is a span of type LLM that has a `signature`; the model's
call is the CHAT_MODEL span below it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import orjson

from stages.ingest.answers import answer_of
from stages.ingest.conventions import logged_tokens, mmgrpo_fields, sampling
from stages.ingest.guard import each
from stages.ingest.messages import messages_of
from stages.ingest.normal import Call, Item, Kind, Refused, Score, Span
from stages.ingest.requests import Request, call_of, known, request_of
from stages.ingest.shape import Shape
from stages.ingest.values import identity, judged, nanoseconds, text, unpacked

NAME = "mlflow"
_KINDS: Mapping[str, Kind] = {
    "CHAT_MODEL": "llm",
    "LLM": "llm",
    "AGENT": "agent",
    "TOOL": "tool",
    "RETRIEVER": "retriever",
    "CHAIN": "chain",
    "WORKFLOW": "chain",
    "TASK": "chain",
}
_ROW = ("trace_metadata", "request_metadata", "execution_duration", "execution_time_ms", "assessments")


def recognises(value: Any, shape: Shape) -> bool:
    """A trace with `info` and `data.spans`, or a row with `spans` and MLflow's other columns."""
    value = _whole(value)
    if not isinstance(value, Mapping):
        return False
    info, data = value.get("info"), unpacked(value.get("data"))
    if isinstance(info, Mapping):
        return _id(info) is not None and isinstance(data, Mapping) and "spans" in data
    return "spans" in value and _id(value) is not None and any(name in value for name in _ROW)


def read(value: Mapping[str, Any], where: str) -> Iterator[Item]:
    """The spans of a trace, and its assessments."""
    value = _whole(value)
    held = value.get("info")
    info: Mapping[str, Any] = held if isinstance(held, Mapping) else value
    data = unpacked(value.get("data"))
    spans = unpacked(data.get("spans") if isinstance(data, Mapping) else value.get("spans"))
    trace = _id(info)
    if trace is None:
        yield Refused("no_trace_id", "`info` has no `trace_id`", where)
        return
    if not spans:
        yield Refused("no_spans", "the trace has no spans", where, trace)
    root: list[str] = []

    def one(span: Mapping[str, Any]) -> Iterator[Item]:
        found = _span(span, info, trace, where)
        root.extend([found.span] if found.parent is None else [])
        yield found

    yield from each(unpacked(spans), lambda span: one(unpacked(span)), where, "span", trace)
    scores = unpacked(info.get("assessments"))
    yield from each(scores, lambda item: _score(unpacked(item), trace, root, where), where, "assessment", trace)


def _whole(value: Any) -> Any:
    """The trace itself, where a row has it in its column `trace`."""
    inner = unpacked(value.get("trace")) if isinstance(value, Mapping) else None
    return inner if isinstance(inner, Mapping) and "info" in inner else value


def _id(info: Mapping[str, Any]) -> str | None:
    return identity(info.get("trace_id")) or identity(info.get("request_id"))


def _span(span: Mapping[str, Any], info: Mapping[str, Any], trace: str, where: str) -> Span:
    attributes = {name: _decoded(value) for name, value in (unpacked(span.get("attributes")) or {}).items()}
    context = unpacked(span.get("context")) or {}
    own = identity(span.get("span_id")) or identity(context.get("span_id"))
    if own is None:
        raise ValueError("the span has no id")
    parent = identity(span.get("parent_span_id")) or identity(span.get("parent_id"))
    inputs, outputs = attributes.get("mlflow.spanInputs"), attributes.get("mlflow.spanOutputs")
    request = _request(inputs, attributes)
    kind = _KINDS.get(str(attributes.get("mlflow.spanType")), "other")
    if kind == "llm" and ("signature" in attributes or request.messages is None):
        kind = "chain"
    return Span(
        trace,
        own,
        parent,
        kind,
        str(span.get("name") or ""),
        nanoseconds(_either(span, "start_time_unix_nano", "start_time_ns", "start_time")),
        nanoseconds(_either(span, "end_time_unix_nano", "end_time_ns", "end_time")),
        error=_error(span),
        signature=text(attributes.get("signature")),
        inputs=inputs,
        outputs=outputs,
        call=_call(request, outputs, attributes) if kind == "llm" else None,
        user=text(_about(info).get("mlflow.trace.user")) if parent is None else None,
        metadata=_metadata(info) if parent is None else {},
        where=where,
        **mmgrpo_fields(attributes),
    )


def _decoded(value: Any) -> Any:
    try:
        return unpacked(orjson.loads(value)) if isinstance(value, str) else value
    except orjson.JSONDecodeError:
        return value


def _either(held: Mapping[str, Any], *names: str) -> Any:
    return next((held[name] for name in names if held.get(name) is not None), None)


def _request(inputs: Any, attributes: Mapping[str, Any]) -> Request:
    request = request_of(inputs)
    said = messages_of(attributes.get("mlflow.chat.messages"))
    if request.messages is None and said:
        prompt = said[:-1] if said[-1]["role"] == "assistant" else said
        return Request(prompt or None, request.tools, request.model, request.settings)
    return request


def _call(request: Request, outputs: Any, attributes: Mapping[str, Any]) -> Call:
    invocation = attributes.get("invocation_params")
    settings = sampling({**attributes, **(invocation if isinstance(invocation, Mapping) else {})})
    return call_of(
        request,
        answer_of(outputs),
        **{name: value for name, value in settings.items() if name not in request.settings},
        **known(logged_tokens(attributes)),
        tools=request.tools or bool(attributes.get("mlflow.chat.tools")),
        model=text(attributes.get("mlflow.llm.model")) or text(attributes.get("model")),
    )


def _error(span: Mapping[str, Any]) -> str | None:
    status = span.get("status")
    held = status if isinstance(status, Mapping) else {"code": status or span.get("status_code")}
    if "ERROR" not in str(held.get("code") or held.get("status_code")) and held.get("code") != 2:
        return None
    said = [event.get("attributes") or {} for event in span.get("events") or [] if event.get("name") == "exception"]
    why = next((found.get("exception.message") or found.get("exception.type") for found in said), None)
    return str(held.get("message") or span.get("status_message") or why or "failed")


def _about(info: Mapping[str, Any]) -> Mapping[str, Any]:
    found = unpacked(_either(info, "trace_metadata", "request_metadata"))
    return found if isinstance(found, Mapping) else {}


def _metadata(info: Mapping[str, Any]) -> dict[str, Any]:
    """Tags that the program's author gave, the session, and what was expected of the trace."""
    tags = unpacked(info.get("tags"))
    found = {name: value for name, value in tags.items() if "mlflow." not in name} if isinstance(tags, Mapping) else {}
    if session := text(_about(info).get("mlflow.trace.session")):
        found["session"] = session
    listed = unpacked(info.get("assessments"))
    for item in listed if isinstance(listed, list) else []:
        wanted = item.get("expectation") if isinstance(item, Mapping) else None
        if isinstance(wanted, Mapping):
            held = wanted.get("serialized_value")
            held = held.get("value") if isinstance(held, Mapping) else wanted.get("value")
            found[f"expected.{item.get('assessment_name') or item.get('name')}"] = _decoded(held)
    return found


def _score(item: Mapping[str, Any], trace: str, root: list[str], where: str) -> Iterator[Item]:
    """A feedback; an expectation is no score, and what a later assessment replaced is none any more."""
    feedback = item.get("feedback")
    if not isinstance(feedback, Mapping) or item.get("valid") is False:
        return
    source = item.get("source")
    source = source if isinstance(source, Mapping) else {}
    span = identity(item.get("span_id"))
    yield Score(
        trace,
        str(item.get("assessment_name") or item.get("name") or "feedback"),
        judged(feedback.get("value")),
        None if span in root else span,
        text(source.get("source_id")) or text(source.get("source_type")),
        where,
    )
