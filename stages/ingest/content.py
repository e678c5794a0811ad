"""What a set of traces is, as one digest: the same whatever the order, the files, and how often each was read."""

from __future__ import annotations

import hashlib
import heapq
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import orjson

from schemas.canonical import canonical_json, digest_bytes
from stages.ingest.assemble import Trace
from stages.ingest.normal import Refused
from stages.ingest.spool import Packed
from stages.ingest.stored import restored, texts
from stages.ingest.tree import once

Entry = tuple[str, str, int]
"""A trace's id, the digest of its spans and scores in normal form, and the number of its spans, each counted once."""


@dataclass(frozen=True)
class Content:
    """A set of traces."""

    digest: str
    """Over the traces, each by that of its spans and scores."""
    traces: int
    spans: int


def content_of(entries: Iterable[Entry]) -> Content:
    """What a set of traces is: that of the list of their ids and digests, sorted. The entries come sorted."""
    state, traces, spans = hashlib.sha256(b"["), 0, 0
    for name, told, count in entries:
        state.update(b"," * bool(traces) + canonical_json([name, told]).encode())
        traces, spans = traces + 1, spans + count
    state.update(b"]")
    return Content(state.hexdigest(), traces, spans)


def entry_of(trace: Trace) -> Entry:
    """What one trace is."""
    spans = list(once(trace.spans).values())
    return _entry(trace.id, trace.format, texts(spans), texts(trace.scores), {item.reason for item in trace.refused})


def entry_of_packed(packed: Packed) -> Entry:
    """What one trace of a spool is: as `entry_of`; only records that are to be put together are looked into."""
    if packed.joined or any(len(records) > 1 for records in packed.spans.values()):
        return entry_of(packed.trace())
    spans = sorted(line.decode() for [(_, line)] in packed.spans.values())
    scores = {line.decode() for _, kind, line in packed.others if kind == "score"}
    refused = [restored(kind, line) for _, kind, line in packed.others if kind == "refused"]
    reasons = {item.reason for item in refused if isinstance(item, Refused)}
    return _entry(packed.id, packed.format, spans, sorted(scores), reasons)


def _entry(name: str, format_name: str, spans: list[str], scores: list[str], reasons: set[str]) -> Entry:
    told = digest_bytes(orjson.dumps([format_name, spans, scores, sorted(reasons)]))
    return name, told, len(spans)


class Entries:
    """Entries of traces, which lie on the disk as they come, part by part, and are handed out in order."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True)
        self._folder, self._parts = folder, 0

    def add(self, entries: Iterable[Entry]) -> None:
        """Take in those of one part, sorted."""
        with (self._folder / str(self._parts)).open("wb") as file:
            file.writelines(orjson.dumps(entry) + b"\n" for entry in entries)
        self._parts += 1

    def __iter__(self) -> Iterator[Entry]:
        return heapq.merge(*(self._part(number) for number in range(self._parts)))

    def _part(self, number: int) -> Iterator[Entry]:
        with (self._folder / str(number)).open("rb") as file:
            for line in file:
                name, told, spans = orjson.loads(line)
                yield name, told, spans
