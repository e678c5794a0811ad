"""Events of an inspect_ai sample as spans: model calls, tool calls, and the spans of solvers and agents around them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from stages.ingest.answers import answer_of
from stages.ingest.conventions import sampling
from stages.ingest.guard import each
from stages.ingest.messages import messages_of
from stages.ingest.normal import Call, Item, Span
from stages.ingest.requests import Request, call_of
from stages.ingest.trajectory import ROOT
from stages.ingest.values import identity, nanoseconds, text

_ATTACHED = "attachment://"


def resolved(value: Any, sample: Mapping[str, Any]) -> Any:
    """A value with the texts that the log keeps apart from it put back."""
    held = sample.get("attachments") or older(sample).get("content")
    return _filled(value, held) if isinstance(held, Mapping) and held else value


def older(sample: Mapping[str, Any]) -> Mapping[str, Any]:
    """The transcript, in which older logs have a sample's events and attachments."""
    found = sample.get("transcript")
    return found if isinstance(found, Mapping) else {}


def _filled(value: Any, held: Mapping[str, Any]) -> Any:
    if isinstance(value, str):
        return held.get(value.removeprefix(_ATTACHED), value) if value.startswith(_ATTACHED) else value
    if isinstance(value, Mapping):
        return {name: _filled(item, held) for name, item in value.items()}
    return [_filled(item, held) for item in value] if isinstance(value, list) else value


def events_of(sample: Mapping[str, Any], trace: str, where: str) -> Iterator[Item]:
    """The spans that a sample's events are."""
    order = iter(range(1, 1 << 40))
    readers = {"model": _model, "tool": _tool, "span_begin": _begin}

    def one(event: Mapping[str, Any]) -> Iterator[Item]:
        place = next(order)
        reader = readers.get(str(event.get("event")))
        if reader is not None and not event.get("pending"):
            yield reader(event, sample, trace, place, where)

    yield from each(sample.get("events") or older(sample).get("events"), one, where, "event", trace)


def _parent(event: Mapping[str, Any], name: str = "span_id") -> str:
    return identity(event.get(name)) or ROOT


def _model(event: Mapping[str, Any], sample: Mapping[str, Any], trace: str, place: int, where: str) -> Span:
    return Span(
        trace,
        identity(event.get("uuid")) or f"event-{place}",
        _parent(event),
        "llm",
        text(event.get("role")) or "",
        nanoseconds(event.get("timestamp")),
        nanoseconds(event.get("completed")),
        place,
        error=str(event["error"]) if event.get("error") else None,
        call=_call(event, sample),
        where=where,
    )


def _call(event: Mapping[str, Any], sample: Mapping[str, Any]) -> Call:
    config = event.get("config")
    config = config if isinstance(config, Mapping) else {}
    prompt = messages_of(resolved(_input(event, sample), sample))
    request = Request(prompt, bool(event.get("tools")), text(event.get("model")), sampling(config))
    output = event.get("output")
    answer = answer_of(resolved(output, sample)) if isinstance(output, Mapping) and output.get("choices") else None
    return call_of(request, answer, cached=event.get("cache") == "read" if "cache" in event else None)


def _input(event: Mapping[str, Any], sample: Mapping[str, Any]) -> Any:
    """The prompt; newer logs keep each message once, in a pool, and give ranges of it."""
    ranges, pool = event.get("input_refs"), sample.get("events_data")
    pool = pool.get("messages") if isinstance(pool, Mapping) else None
    if event.get("input") or not isinstance(ranges, list) or not isinstance(pool, list):
        return event.get("input")
    return [message for start, end in ranges for message in pool[start:end]]


def _tool(event: Mapping[str, Any], sample: Mapping[str, Any], trace: str, place: int, where: str) -> Span:
    error = event.get("error")
    return Span(
        trace,
        identity(event.get("uuid")) or f"event-{place}",
        _parent(event),
        "tool",
        str(event.get("function") or ""),
        nanoseconds(event.get("timestamp")),
        nanoseconds(event.get("completed")),
        place,
        error=str(error.get("message") or error.get("type")) if isinstance(error, Mapping) else None,
        inputs=resolved(event.get("arguments"), sample),
        outputs=resolved(event.get("result"), sample),
        where=where,
    )


def _begin(event: Mapping[str, Any], sample: Mapping[str, Any], trace: str, place: int, where: str) -> Span:
    """A span; that of an agent has the name of the agent."""
    own = identity(event.get("id"))
    if own is None:
        raise ValueError("the span has no id")
    agent = event.get("type") == "agent"
    return Span(
        trace,
        own,
        _parent(event, "parent_id"),
        "agent" if agent else "chain",
        str(event.get("name") or ""),
        nanoseconds(event.get("timestamp")),
        order=place,
        agent=text(event.get("name")) if agent else None,
        where=where,
    )
