"""What a set of traces is, as one digest: the same whatever the order, the files, and how often each was read."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from schemas.canonical import canonical_json, digest
from stages.ingest.assemble import Trace
from stages.ingest.tree import once, plain


@dataclass(frozen=True)
class Content:
    """A set of traces."""

    digest: str
    """Over the traces, each by that of its spans and scores in normal form."""
    traces: int
    spans: int
    """Each counted once."""


def content_of(traces: Iterable[Trace]) -> Content:
    """What a set of traces is."""
    found, spans = [], 0
    for trace in traces:
        kept = [plain(span) for span in once(trace.spans).values()]
        spans += len(kept)
        scores = [[score.name, score.value, score.source, score.span] for score in trace.scores]
        refused = sorted({item.reason for item in trace.refused})
        whole = [sorted({canonical_json(item) for item in items}) for items in (kept, scores)]
        found.append([trace.id, digest([trace.format, *whole, refused])])
    return Content(digest(sorted(found)), len(found), spans)
