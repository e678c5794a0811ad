"""One trace as a tree: each span once, a root, and the LM calls in order.

- A span that was logged several times (an export made twice, a streaming span updated, a patch) counts once: of unequal
  records, each field is taken from the one that ended last and has it.
- The root is the one span without a parent. Where none is, the spans whose parent the log lacks stand for it, if that
  parent is one and the same: it was a request handler's, say, and not exported.
- A span whose parent the log lacks otherwise hangs from the root, and so does one of a circle of parents.
- Calls are ordered by start, then by place in the log, then by end and id. What several layers of a program logged of
  one call is one call: see `layers`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

from schemas.canonical import canonical_json
from stages.ingest.layers import Calls, call_of_records, calls_of
from stages.ingest.normal import NOT_EXPORTED, Span
from stages.ingest.offered import with_tools
from stages.ingest.told import joined

_UNKNOWN: tuple[Any, ...] = (None, "", {}, "other", NOT_EXPORTED)
NO_ROOT, SEVERAL_ROOTS = "no_root", "several_roots"


@dataclass(frozen=True)
class Tree:
    """The spans of one trace."""

    root: Span | None
    """None where it was not exported."""
    spans: dict[str, Span]
    repeated: int
    """Records that were a further one of a span."""
    found: Calls
    """Its LM calls, and the LM spans that are none."""

    def above(self, span: Span) -> Iterator[Span]:
        """A span and those above it, nearest first."""
        seen: set[str] = set()
        here: Span | None = span
        while here is not None and here.span not in seen:
            seen.add(here.span)
            yield here
            here = self.spans.get(here.parent or "")
        if self.root is not None and self.root.span not in seen:
            yield self.root

    def calls(self) -> list[Span]:
        """The LM calls, in order, each once."""
        return self.found.once


def _place(span: Span) -> tuple[Any, ...]:
    return (span.start or 0, span.order, span.end or 0, span.span)


def once(records: Sequence[Span]) -> dict[str, Span]:
    """Each span once, by id, whatever the order and number of its records."""
    single = {record.span: record for record in records}
    if len(single) == len(records) and not any(record.told or record.where for record in records):
        return {name: single[name] for name in sorted(single)}
    by_id: dict[str, list[Span]] = {}
    for record in records:
        by_id.setdefault(record.span, []).append(record)
    return {name: joined(_merged(found), found) for name, found in sorted(by_id.items())}


def grow(records: Sequence[Span]) -> Tree | str:
    """The tree of a trace's records, or the reason why there is none."""
    spans = once(records)
    roots = [span for span in spans.values() if span.parent is None]
    repeated = max(0, len(records) - sum([bool(record.told) for record in records]) - len(spans))
    if len(roots) > 1:
        return SEVERAL_ROOTS
    if roots:
        return _tree(roots[0], spans, repeated)
    outside = {span.parent for span in spans.values() if span.parent not in spans}
    if len(outside) != 1:
        return SEVERAL_ROOTS if outside else NO_ROOT
    tops = [span for span in spans.values() if span.parent in outside]
    return _tree(tops[0] if len(tops) == 1 else None, spans, repeated)


def _tree(root: Span | None, spans: dict[str, Span], repeated: int) -> Tree:
    if any(span.offers for span in spans.values()):
        spans = with_tools(spans)
    asked = sorted((span for span in spans.values() if span.kind == "llm"), key=_place)
    return Tree(root, spans, repeated, calls_of(spans, asked))


def _merged(records: Sequence[Span]) -> Span:
    """One span of its records, whatever their order."""
    if len(records) == 1:
        return replace(records[0], where="") if records[0].where else records[0]
    ordered = sorted((replace(record, where="") for record in records), key=_age, reverse=True)
    newest = ordered[0]
    changes = {}
    for item in fields(Span):
        if getattr(newest, item.name) in _UNKNOWN:
            known = [getattr(record, item.name) for record in ordered]
            changes[item.name] = next((value for value in known if value not in _UNKNOWN), known[0])
    calls = [record.call for record in ordered if record.call is not None]
    if len(calls) > 1:
        changes["call"] = call_of_records(calls)
    return replace(newest, **changes)


def _age(span: Span) -> tuple[Any, ...]:
    whole = span.call is not None and span.call.completion is not None
    return (span.end or 0, whole, canonical_json(plain(span)))


def plain(value: Any) -> Any:
    """A span or call as a JSON value, fields that say nothing left out."""
    if hasattr(value, "__dataclass_fields__"):
        held = {item.name: plain(getattr(value, item.name)) for item in fields(value)}
        return {name: item for name, item in held.items() if item not in (None, "", [], {}, False) or item is True}
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    return value
