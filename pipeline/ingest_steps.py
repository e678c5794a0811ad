"""The steps of an ingest, each of a part of the traces, so that several processes can share them.

pieces of files --read_piece--> parts of a spool --tell_part--> what each trace is
                                                 --make_part--> ranges of records --make_range--> tables
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from uuid import uuid4

from pipeline.redacting import redacted
from pipeline.tombstones import trace_digest
from stages.ingest.account import Account
from stages.ingest.assemble import Assembler, Trace
from stages.ingest.content import Entry, entry_of, entry_of_packed
from stages.ingest.formats import format_named, piece_items
from stages.ingest.limits import DEFAULT, Limits, use_limits
from stages.ingest.normal import Refused
from stages.ingest.pseudonyms import numbered
from stages.ingest.ranges import Made, Ranges, made_of
from stages.ingest.read import Piece
from stages.ingest.records import Record
from stages.ingest.redact import Redactor
from stages.ingest.snapshot import record_of
from stages.ingest.spool import Packed, Spool, traces_in


@dataclass(frozen=True)
class Lying:
    """Where the items of all files lie, and which of them count."""

    folder: Path
    forgotten: frozenset[str]
    """Digests of the ids of traces that were to be forgotten."""
    redacted: bool
    """Whether marks stand in the place of what was taken out."""
    limits: Limits = DEFAULT
    """What files may unpack to."""

    def spools(self) -> list[Path]:
        """One of each process that read files."""
        return sorted(self.folder.glob("items-*"))

    def packed(self, place: int) -> Iterator[tuple[Packed, bool]]:
        """The traces of one part, and whether each was to be forgotten."""
        for packed in traces_in(self.spools(), place):
            yield packed, bool(self.forgotten) and trace_digest(packed.id) in self.forgotten

    def traces(self, place: int) -> Iterator[Trace]:
        """Those that count, in normal form, with pseudonyms in the place of marks."""
        for packed, forgotten in self.packed(place):
            if not forgotten:
                yield numbered(packed.trace()) if self.redacted else packed.trace()


class Reading:
    """Reads pieces of files into a spool of this process."""

    def __init__(self, lying: Lying, redactor: Redactor | None) -> None:
        use_limits(lying.limits)
        self.lying, self.redactor = lying, redactor
        self.spool = Spool(lying.folder / f"items-{uuid4().hex}")


@dataclass
class Read:
    """What came of a piece."""

    address: str
    end: int
    """See `Piece`."""
    spans: int = 0
    refused: list[Refused] = field(default_factory=list)


def read_piece(state: Reading, task: tuple[Piece, str] | Refused) -> Read:
    """Read a piece of a file in the format of a name. What is refused already is passed on in its turn."""
    if isinstance(task, Refused):
        return Read(task.where, 0, refused=[task])
    piece, format_name = task
    read, before = Read(piece.address, piece.end), state.spool.spans
    for found in piece_items(piece, format_named(format_name)):
        item = redacted(found, state.redactor)
        failed = None if isinstance(item, Refused) and item.trace is None else state.spool.add(item, format_name)
        if isinstance(item, Refused):
            read.refused.append(item)
        elif failed is not None:
            read.refused.append(failed)
    state.spool.flush()
    read.spans = state.spool.spans - before
    return read


@dataclass
class Told:
    """What the traces of a part are."""

    entries: list[Entry]
    forgotten: int
    """Traces that were left out, since they were to be forgotten."""


def tell_part(state: Reading, place: int) -> Told:
    """What the traces of one part are, once all files are read."""
    lying = state.lying
    if lying.redacted:
        total = sum(1 for _ in lying.packed(place))
        entries = [entry_of(trace) for trace in lying.traces(place)]
        return Told(entries, total - len(entries))
    found = [None if forgotten else entry_of_packed(packed) for packed, forgotten in lying.packed(place)]
    entries = [entry for entry in found if entry is not None]
    return Told(entries, len(found) - len(entries))


class Making:
    """Makes records of traces, and cuts them into ranges of this process.

    Args:
        lying: the traces.
        assembler: of the recipe.
        secret: of example ids.
        folder: for ranges.
        count: of ranges.
    """

    def __init__(self, lying: Lying, assembler: Assembler, secret: bytes | None, *, folder: Path, count: int) -> None:
        self._lying, self._assembler, self._secret = lying, assembler, secret
        self.ranges = Ranges(folder / uuid4().hex, count)

    def records(self, place: int) -> Iterator[tuple[Record, int]]:
        """See `record_of`."""
        return (record_of(self._assembler, trace, self._secret) for trace in self._lying.traces(place))


def make_part(state: Making, place: int) -> tuple[Account, int]:
    """Make the records of one part; how many spans' records were a further one of a span."""
    account, repeated = Account(), 0
    for record, further in state.records(place):
        account.count(record)
        state.ranges.add(record)
        repeated += further
    state.ranges.flush()
    return account, repeated


def make_range(_: Making, task: tuple[list[Path], int, float]) -> Made:
    """The tables of one range of records; see `made_of`."""
    return made_of(*task)
