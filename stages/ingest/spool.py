"""Items of any number of files, brought together by trace in bounded memory.

Items are appended to a fixed number of files by a hash of their trace, so that only one of them is held at a time when
traces are put together. What is kept of them does not depend on the order or the files in which they came.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

from stages.ingest.assemble import Trace
from stages.ingest.chunks import Chunks, chunks_in
from stages.ingest.normal import Item, Refused, Score, Span
from stages.ingest.stored import KINDS, restored, stored

PARTS = 256
_TOLD = "told"
"""A record of a span that holds messages which were logged apart from it."""


@dataclass(slots=True)
class Packed:
    """A trace as it lies in the spool. Its items are made only where they are needed."""

    id: str
    spans: dict[str, list[tuple[str, bytes]]] = field(default_factory=dict)
    """(format, record) by span."""
    joined: bool = False
    """Whether something of a span was logged apart from it."""
    others: list[tuple[str, str, bytes]] = field(default_factory=list)
    """(format, kind, record) of scores and refusals."""

    @property
    def format(self) -> str:
        """That of its spans; of several, the first by name."""
        spans = {name for records in self.spans.values() for name, _ in records}
        return min(spans or {name for name, *_ in self.others})

    def trace(self) -> Trace:
        """The trace in normal form."""
        spans = [restored("span", line) for records in self.spans.values() for _, line in records]
        others = [restored(kind, line) for _, kind, line in self.others]
        return Trace(
            self.id,
            self.format,
            [span for span in spans if isinstance(span, Span)],
            [item for item in others if isinstance(item, Score)],
            [item for item in others if isinstance(item, Refused)],
        )


class Spool:
    """Items on their way, in a folder of their own."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._chunks = folder, Chunks(folder, PARTS)
        self.spans = 0

    def add(self, item: Item, format_name: str) -> Refused | None:
        """Take in an item of a known trace; one that cannot be stored is refused in its place."""
        assert item.trace is not None
        try:
            line = stored(item)
        except (TypeError, ValueError) as error:
            refused = _refused(item, error)
            self._keep(format_name, "refused", str(refused.trace), None, stored(refused))
            return refused
        span = item.span if isinstance(item, Span) else None
        kind = _TOLD if isinstance(item, Span) and item.told else KINDS[type(item)]
        self.spans += span is not None
        self._keep(format_name, kind, item.trace, span, line)
        return None

    def _keep(self, format_name: str, kind: str, trace: str, span: str | None, line: bytes) -> None:
        self._chunks.add(_part_of(trace), (format_name, kind, trace, span), line)

    def flush(self) -> None:
        """Write what waits in memory."""
        self._chunks.flush()

    def done(self, task: str, told: Any) -> None:
        """Note that all items of a task are there; see `Chunks.done`."""
        self._chunks.done(task, told)

    def traces(self) -> Iterator[Trace]:
        """Every trace with all that belongs to it, part by part and by id within."""
        self.flush()
        for place in range(PARTS):
            yield from (packed.trace() for packed in traces_in([self._folder], place))


def traces_in(folders: Iterable[Path], place: int) -> Iterator[Packed]:
    """The traces of one part of a spool that lies in several folders, by id."""
    found: dict[str, Packed] = {}
    for format_name, kind, name, span, line in chunks_in(folders, place):
        packed = found.get(name)
        if packed is None:
            packed = found[name] = Packed(name)
        if span is not None:
            packed.spans.setdefault(span, []).append((format_name, line))
            packed.joined |= kind == _TOLD
        else:
            packed.others.append((format_name, kind, line))
    for name in sorted(found):
        yield found.pop(name)


@lru_cache(1 << 12)  # the spans of a trace mostly come together
def _part_of(trace: str) -> int:
    return hashlib.blake2b(trace.encode(), digest_size=1).digest()[0]


def _refused(item: Item, error: Exception) -> Refused:
    """That an item has no JSON form, in texts that have one."""
    trace, detail = (text.encode(errors="replace").decode() for text in (str(item.trace), str(error)))
    return Refused("not_storable", f"a value has no JSON form: {detail}", item.where, trace)
