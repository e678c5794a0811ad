"""OpenTelemetry spans, however a file lays them out, by the conventions that their attributes follow.

`conventions` says which attributes mean what; this file puts their findings together.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

from stages.ingest import (
    conventions_genai,
    conventions_langfuse,
    conventions_logfire,
    conventions_openinference,
    conventions_vercel,
)
from stages.ingest.conventions import NOTHING, Findings, mmgrpo_fields
from stages.ingest.normal import Item, Refused, Score, Span
from stages.ingest.values import identity, judged, nanoseconds, text, unpacked

EVALUATION = "gen_ai.evaluation.result"
_TRACELOOP = "traceloop.association.properties."
_USERS = (
    "user.id",
    "enduser.id",
    "gen_ai.user.id",
    "langfuse.user.id",
    "ai.telemetry.metadata.userId",
    f"{_TRACELOOP}user_id",
)
_ADDED = ("app.", "ai.telemetry.metadata.", conventions_langfuse.ADDED, _TRACELOOP)
_EXAMPLES = ("mmgrpo.example_id", "dataset.example.id", "dataset_item_id", "langfuse.experiment.item.id")


class RawEvent(NamedTuple):
    """An event of a span."""

    name: str
    attributes: Mapping[str, Any]


class RawSpan(NamedTuple):
    """A span as a file has it: ids and times not read yet, attributes as a flat dictionary."""

    trace: Any
    span: Any
    parent: Any
    name: str
    start: Any
    end: Any
    failed: bool
    message: Any
    attributes: Mapping[str, Any]
    events: Sequence[RawEvent]
    scope: str
    where: str


def items_of(raw: RawSpan) -> list[Item]:
    """The span in normal form, and the evaluations among its events; or why it is none."""
    trace, span, parent = trace_id(raw.trace), span_id(raw.span), span_id(raw.parent)
    if trace is None or span is None:
        missing = "no_trace_id" if trace is None else "no_span_id"
        return [Refused(missing, f"the span '{raw.name}' has none", raw.where)]
    spoken = _spoken(tuple(raw.attributes))
    found = _findings(raw, spoken)
    made = Span(
        trace,
        span,
        parent,
        found.kind or "other",
        raw.name,
        nanoseconds(raw.start),
        nanoseconds(raw.end),
        where=raw.where,
    )
    made.agent, made.inputs, made.outputs, made.call = found.agent, found.inputs, found.outputs, found.call
    made.error, made.offers = _error(raw) if raw.failed else found.error, found.offers
    made.scope = raw.scope if made.call else ""
    if spoken.more:
        _say_more(made, raw.attributes, spoken)
    if not raw.events:
        return [made]
    above = None if parent is None else span
    judged = [event.attributes for event in raw.events if event.name == EVALUATION]
    return [made, *(evaluation(attributes, trace, above, raw.where) for attributes in judged)]


def _say_more(span: Span, attributes: Mapping[str, Any], spoken: _Spoken) -> None:
    """Fill in what few spans say."""
    span.signature = text(unpacked(attributes.get("signature")))
    span.example, span.user = _first(attributes, spoken.examples), _first(attributes, spoken.users)
    if spoken.metadata:
        span.metadata = _metadata(attributes)
    if spoken.whole and span.parent is None:
        for name, value in conventions_langfuse.of_the_trace(attributes).items():
            setattr(span, name, value)
    if spoken.mmgrpo:
        for name, value in mmgrpo_fields(attributes).items():
            setattr(span, name, value)


def trace_id(value: Any) -> str | None:
    """The id of a trace in hex, or None."""
    return _id(value, 32)


def span_id(value: Any) -> str | None:
    """The id of a span in hex, or None."""
    return _id(value, 16)


def _id(value: Any, digits: int) -> str | None:
    """An id in hex; SDKs in Python hold it as a number."""
    if type(value) is str:
        return _of_text(value)
    if value is None:
        return None
    whole = isinstance(value, int) and not isinstance(value, bool)
    if whole:
        return f"{value:0{digits}x}" if value > 0 else None
    return identity(value)


_of_text = lru_cache(1 << 14)(identity)
"""The spans of a trace name it, and those above them, again and again."""


class _Spoken(NamedTuple):
    """What the names of a span's attributes say already; spans of one program have few sets of names."""

    conventions: tuple[Any, ...]
    """Those that may know the span."""
    metadata: bool
    mmgrpo: bool
    whole: bool
    """Whether the input or the output of the whole trace may be among them."""
    examples: tuple[str, ...]
    users: tuple[str, ...]
    more: bool
    """Whether they say anything but what the conventions find."""


@lru_cache(4096)
def _spoken(names: tuple[str, ...]) -> _Spoken:
    asked = (conventions_langfuse, conventions_openinference, conventions_vercel, conventions_logfire)
    metadata = any(name in ("metadata", "session.id") or name.startswith(_ADDED) for name in names)
    mmgrpo = any(name.startswith("mmgrpo.") for name in names)
    whole = any(name.startswith("langfuse.trace.") for name in names)
    examples = tuple(name for name in _EXAMPLES if name in names)
    users = tuple(name for name in _USERS if name in names)
    return _Spoken(
        (*(convention for convention in asked if convention.may_know(names)), conventions_genai),
        metadata,
        mmgrpo,
        whole,
        examples,
        users,
        bool(metadata or mmgrpo or whole or examples or users or "signature" in names),
    )


def _findings(raw: RawSpan, spoken: _Spoken) -> Findings:
    """What the first convention says that knows the span, the others filling in what it leaves open."""
    found = NOTHING
    for convention in spoken.conventions:
        found = found.filled(convention.findings(raw.name, raw.attributes, raw.events, raw.scope))
    if found.call is None:
        return found
    if found.kind != "llm":
        return found.without_call()
    return found.ending() if conventions_logfire.is_record(raw.attributes) else found


def _error(raw: RawSpan) -> str:
    """Why a span failed."""
    for event in raw.events:
        if event.name == "exception":
            said = event.attributes.get("exception.message") or event.attributes.get("exception.type")
            return str(raw.message or said or "exception")
    return str(raw.message or raw.attributes.get("error.type") or "failed")


def evaluation(attributes: Mapping[str, Any], trace: str, span: str | None, where: str) -> Score:
    """An evaluation of a span; of the whole trace where there is none."""
    return Score(
        trace=trace,
        name=text(attributes.get("gen_ai.evaluation.name")) or "evaluation",
        value=judged(attributes.get("gen_ai.evaluation.score.value", attributes.get("gen_ai.evaluation.score.label"))),
        span=span,
        source=text(attributes.get("gen_ai.evaluation.evaluator")),
        where=where,
    )


def _first(attributes: Mapping[str, Any], names: Sequence[str]) -> str | None:
    for name in names:
        if (found := attributes.get(name)) not in (None, ""):
            return str(found)
    return None


def _metadata(attributes: Mapping[str, Any]) -> dict[str, Any]:
    """What the program's author added: attributes of no convention, and those of OpenInference's `metadata`."""
    own = unpacked(attributes.get("metadata"))
    return {
        **{name: value for name, value in attributes.items() if name.startswith(_ADDED)},
        **({"session": attributes["session.id"]} if text(attributes.get("session.id")) else {}),
        **(own if isinstance(own, dict) else {}),
    }
