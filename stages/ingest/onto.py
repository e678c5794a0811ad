"""New traces onto an older snapshot: its rows stay, those of a trace that came again are taken from the new one.

A trace is taken as a whole: where it comes again with other content, its newer record stands for it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path

from stages.ingest.records import Record, fingerprint, records_of


class Onto:
    """The rows of a snapshot that others come onto.

    Args:
        folder: of the snapshot.
        again: ids of traces that others are given of; what the snapshot holds of them is left.
        scored: whether logged scores count when two records are compared.
    """

    def __init__(self, folder: Path, again: Collection[str], *, scored: bool = True) -> None:
        self._folder, self._again, self._scored = folder, frozenset(again), scored
        self._known: dict[str, str] = {}
        self.traces = self.spans = 0
        """Of the traces that stay."""
        self.counts: Counter[str] = Counter()
        """`added`, `replaced` and `same` among the new traces."""
        for record in records_of(folder):
            if record.id in self._again:
                self._known[record.id] = fingerprint(record, scored=scored)
            else:
                self.traces += 1
                self.spans += record.trace["spans"]

    def merged(self, new: Iterable[Record]) -> Iterator[Record]:
        """The new records, then the old ones that stay."""
        for record in new:
            before = self._known.get(record.id)
            same = before is not None and before == fingerprint(record, scored=self._scored)
            self.counts["same" if same else "replaced" if before else "added"] += 1
            yield record
        yield from (record for record in records_of(self._folder) if record.id not in self._again)
