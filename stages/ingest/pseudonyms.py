"""Marks of values that were taken out of a trace, and the pseudonyms that stand in their place: `<EMAIL_1>`.

Values are numbered by kind in the order in which a trace holds them, its input first: equal inputs of two traces get
equal pseudonyms, whoever they were about, and no pseudonym says anything of its value. The order is that of what was
logged, never that of files or of marks.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from schemas.canonical import canonical_json
from stages.ingest.assemble import Trace
from stages.ingest.normal import Span
from stages.ingest.texts import mapped, texts_of
from stages.ingest.tree import plain

_MARK = re.compile("\ue000([A-Z][A-Z0-9_]*):([0-9a-f]{32})\ue001")
_TAKEN = re.compile(r"<([A-Z][A-Z0-9_]*)_(\d{1,9})>")
_FIELDS = ("inputs", "call", "told", "outputs", "name", "error", "metadata", "example")
"""Of a span, in the order in which they are looked through."""


def mark(kind: str, digest: str) -> str:
    """What stands for a value until its trace is whole. `digest`: 32 hex digits."""
    return f"\ue000{kind}:{digest}\ue001"


def numbered(trace: Trace) -> Trace:
    """A trace with pseudonyms in the place of marks, and the number of values that they stand for."""
    spans = sorted(trace.spans, key=_place)
    texts = [text for span in spans for text in _texts(span)]
    texts += sorted((score.source or "" for score in trace.scores), key=_masked)
    names, values = _names(texts)
    if not names:
        return trace

    def named(text: str) -> str:
        return _MARK.sub(lambda found: names[found[0]], text) if "\ue000" in text else text

    scores = [mapped(score, named) for score in trace.scores]
    return replace(trace, spans=[mapped(span, named) for span in spans], scores=scores, redacted=values)


def _names(texts: Sequence[str]) -> tuple[dict[str, str], Counter[str]]:
    """A pseudonym for each mark. Those that the log itself holds stay what they are: numbers go on behind them."""
    last: Counter[str] = Counter()
    for text in texts:
        for kind, number in _TAKEN.findall(text):
            last[kind] = max(last[kind], int(number))
    names: dict[str, str] = {}
    values: Counter[str] = Counter()
    for text in texts:
        for found in _MARK.finditer(text):
            if found[0] not in names:
                values[found[1]] += 1
                names[found[0]] = f"<{found[1]}_{last[found[1]] + values[found[1]]}>"
    return names, values


def _texts(span: Span) -> Iterator[str]:
    for name in _FIELDS:
        yield from texts_of(plain(getattr(span, name)), _masked)


def _place(span: Span) -> tuple[Any, ...]:
    """Where a span's record stands: the root first, then by what is known of its place, then by its content."""
    told = canonical_json(plain(replace(span, where="")))
    return (span.parent is not None, span.start or 0, span.order, span.span, _masked(told))


def _masked(text: str) -> str:
    """A text as it reads whatever its marks are: they are numbered within it."""
    known: dict[str, int] = {}

    def change(found: re.Match[str]) -> str:
        return f"{found[1]}:{known.setdefault(found[0], len(known))}"

    return _MARK.sub(change, text) if "\ue000" in text else text
