"""Tools that the log names at an agent alone: its calls were offered them, though they do not say so."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from stages.ingest.normal import Span


def with_tools(spans: Mapping[str, Span]) -> dict[str, Span]:
    """The spans of a trace, those of calls with the tools that the agent nearest above them has."""
    return {name: _offered(span, spans) for name, span in spans.items()}


def _offered(span: Span, spans: Mapping[str, Span]) -> Span:
    if span.call is None or span.call.tools:
        return span
    seen: set[str] = set()
    here = spans.get(span.parent or "")
    while here is not None and here.span not in seen and here.kind not in ("agent", "tool"):
        seen.add(here.span)
        here = spans.get(here.parent or "")
    return replace(span, call=replace(span.call, tools=True)) if here is not None and here.offers else span
