"""LM calls that several layers of a program logged: a framework, and the client library that it calls.

- An LM span below another is a further record of the same call: one call counts, with what each of them tells. The
  prompt is the inner one's where they differ, being nearer to what was sent.
- An LM span above several that were answered is a step that makes calls, as is one without a prompt: those below count.
- So is an LM span beside another, or beside one above it, that another instrumentation wrote, that lies within its
  time, and that was asked and answered the same: JavaScript's LangChain hands no span down to the client library.
- The end of a stream that was logged beside its request, as Logfire does, is that request's answer.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence, Set
from dataclasses import fields, replace
from typing import Any, NamedTuple

from stages.ingest.normal import Call, Span

FURTHER_RECORD, MAKES_CALLS = "further_record_of_a_call", "makes_calls"
_TOKENS = ("prompt_ids", "completion_ids", "logprobs", "logprob_kind")
_LAYERS = 2
_OWN = ("module", "invocation_index", "attempt", "policy", "agent")


class Calls(NamedTuple):
    """The LM spans of a trace."""

    once: list[Span]
    """Each call once, in order."""
    further: list[tuple[Span, str]]
    """The other spans, and why they are no calls of their own."""


def calls_of(spans: Mapping[str, Span], ordered: Sequence[Span]) -> Calls:
    """The calls among the LM spans of a trace.

    Args:
        spans: all spans of the trace by id.
        ordered: its LM spans, in order.
    """
    further: list[tuple[Span, str]] = []
    joined = _with_siblings(spans, _with_streams(ordered, further), further)
    known = {span.span for span in joined}
    below: dict[str, list[Span]] = {}
    outermost: list[Span] = []
    for span in joined:
        above = _nearest(span, spans, known)
        below.setdefault(above, []).append(span) if above else outermost.append(span)
    if not below:
        return Calls(joined, further)
    outside_in = list(outermost)
    for span in outside_in:  # grows as it goes
        outside_in += below.get(span.span, ())
    settled: dict[str, list[Span]] = {}
    for span in reversed(outside_in):
        inner = [one for child in below.get(span.span, ()) for one in settled.pop(child.span)]
        settled[span.span] = _settled(span, inner, further) if inner else [span]
    places = {span.span: place for place, span in enumerate(joined)}
    return Calls(
        sorted((one for found in settled.values() for one in found), key=lambda one: places[one.span]), further
    )


def _nearest(span: Span, spans: Mapping[str, Span], known: Set[str]) -> str | None:
    """The nearest LM span above one; none where the parents go round in a circle."""
    seen = {span.span}
    here = spans.get(span.parent or "")
    found: str | None = None
    while here is not None:
        if here.span in seen:
            return None
        seen.add(here.span)
        if found is None and here.span in known:
            found = here.span
        here = spans.get(here.parent or "")
    return found


def _settled(outer: Span, inner: list[Span], further: list[tuple[Span, str]]) -> list[Span]:
    """The calls that an LM span and the calls below it stand for."""
    answered = [span for span in inner if span.call is not None and _answered(span.call)]
    if outer.call is None or not (outer.call.messages or outer.call.prompt_ids) or len(answered) > 1:
        further.append((outer, MAKES_CALLS))
        return inner
    other = next((span for span in answered if _asked_else(outer.call, span.call)), None)
    kept = outer if other is None else other
    rest = [span for span in (outer, *inner) if span is not kept]
    further += [(span, FURTHER_RECORD) for span in rest]
    return [_joined(kept, rest)]


def _asked_else(call: Call, inner: Call | None) -> bool:
    """Whether the inner of two records tells of another prompt, and not of none."""
    return inner is not None and bool(inner.messages) and _prompt(inner) != _prompt(call)


def _prompt(call: Call) -> list[tuple[object, object]]:
    return [(said.get("role"), said.get("content")) for said in call.messages]


def _answered(call: Call) -> bool:
    return call.completion is not None or bool(call.tool_calls) or call.completion_ids is not None


def _with_streams(ordered: Sequence[Span], further: list[tuple[Span, str]]) -> list[Span]:
    """The LM spans, each end of a stream joined to the last request before it that it answers."""
    if not any(span.call is not None and span.call.streamed for span in ordered):
        return list(ordered)
    found: list[Span] = []
    for span in ordered:
        asked = _request_of(span, found) if span.call is not None and span.call.streamed else None
        if asked is None:
            found.append(span)
        else:
            further.append((span, FURTHER_RECORD))
            found[asked] = replace(_joined(found[asked], [span]), end=span.end or found[asked].end)
    return found


def _with_siblings(spans: Mapping[str, Span], ordered: Sequence[Span], further: list[tuple[Span, str]]) -> list[Span]:
    """The LM spans, each joined to the one beside it that a lower layer of the program wrote of the same call."""
    if len({span.scope for span in ordered}) < _LAYERS:
        return list(ordered)
    found: list[Span] = []
    inner: set[str] = set()
    starts = [span.start or 0 for span in ordered]
    for outer in ordered:
        if outer.span in inner:
            continue
        above = _above(outer, spans)
        during = ordered[bisect_left(starts, outer.start or 0) : bisect_right(starts, outer.end or 0)]
        near = (span for span in during if span.span not in inner and span.parent in above)
        beside = next((span for span in near if _lies_within(span, outer)), None)
        if beside is not None:
            inner.add(beside.span)
            further.append((beside, FURTHER_RECORD))
        found.append(outer if beside is None else _joined(outer, [beside]))
    return [span for span in found if span.span not in inner]


def _above(span: Span, spans: Mapping[str, Span]) -> set[str | None]:
    """The ids of the spans above one."""
    found: set[str | None] = set()
    here: Span | None = span
    while here is not None and here.parent not in found:
        found.add(here.parent)
        here = spans.get(here.parent or "")
    return found


def _lies_within(inner: Span, outer: Span) -> bool:
    """Whether one LM span is a lower layer's record of the call that another tells of."""
    if not inner.scope or not outer.scope or inner.scope == outer.scope:
        return False
    times = (outer.start, inner.start, inner.end, outer.end)
    known = [time for time in times if time is not None]
    if len(known) < len(times) or known != sorted(known) or inner.call is None or outer.call is None:
        return False
    told = (None, "", inner.call.completion)
    return _answered(inner.call) and _prompt(inner.call) == _prompt(outer.call) and outer.call.completion in told


def _request_of(end: Span, before: Sequence[Span]) -> int | None:
    """Where the last request stands that a record of the end of a stream may answer; none where there is none."""
    for place in range(len(before) - 1, -1, -1):
        span = before[place]
        if span.parent == end.parent and span.error is None and _waits_for(span.call, end.call):
            return place
    return None


def _waits_for(asked: Call | None, end: Call | None) -> bool:
    if asked is None or end is None or asked.streamed or _answered(asked):
        return False
    return _prompt(asked) == _prompt(end)


def _joined(span: Span, further: Sequence[Span]) -> Span:
    """A span with what further records of its call tell."""
    records = [record.call for record in (span, *further) if record.call is not None]
    own = {name: _first([getattr(record, name) for record in (span, *further)]) for name in _OWN}
    return replace(span, call=call_of_records(records), **own)


def call_of_records(calls: Sequence[Call]) -> Call:
    """One call of its records: of each field, what the first tells that tells anything."""
    first = calls[0]
    names = [item.name for item in fields(Call) if item.name != "choices"]
    changes: dict[str, Any] = {name: _first([getattr(call, name) for call in calls]) for name in names}
    changes["choices"] = max(call.choices for call in calls)
    if changes["redacted"]:
        changes |= dict.fromkeys(_TOKENS)
    return replace(first, **changes)


def _first(values: Sequence[Any]) -> Any:
    return next((value for value in values if not _says_nothing(value)), values[0])


def _says_nothing(value: object) -> bool:
    """Whether a field of a record is empty. A 0 is not."""
    return value is None or value is False or value in ("", ())
