"""What a set of traces is, as one digest: the same whatever the order, the files, and how often each was read."""

from __future__ import annotations

from collections.abc import Iterable

from schemas.canonical import canonical_json, digest
from stages.ingest.assemble import Trace
from stages.ingest.tree import grow, plain


def content_of(traces: Iterable[Trace]) -> tuple[str, int]:
    """Digest over the traces, each by that of its spans and scores in normal form, and how many they are."""
    found = sorted([trace.id, digest_of(trace)] for trace in traces)
    return digest(found), len(found)


def digest_of(trace: Trace) -> str:
    """Digest of one trace."""
    tree = grow(trace.spans)
    spans = (
        [plain(span) for span in tree.spans.values()]
        if not isinstance(tree, str)
        else [plain(span) for span in trace.spans]
    )
    scores = [[score.name, score.value, score.source, score.span] for score in trace.scores]
    refused = sorted({item.reason for item in trace.refused})
    kept = [sorted({canonical_json(item) for item in items}) for items in (spans, scores)]
    return digest([trace.format, *kept, refused])
