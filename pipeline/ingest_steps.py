"""The steps of an ingest, each of a part of the traces, so that several processes can share them.

pieces of files --read_piece--> parts of a spool --tell_part--> what each trace is
                                                 --make_part--> ranges of records --make_range--> tables
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from uuid import uuid4

from pipeline.redacting import redacted
from pipeline.tombstones import trace_digest
from schemas.addresses import without_secrets
from schemas.canonical import digest
from schemas.recipe_ingest import IngestSection
from stages.ingest.account import Account
from stages.ingest.assemble import Assembler, Trace
from stages.ingest.content import Entry, entry_of, entry_of_packed
from stages.ingest.formats import format_named, piece_items
from stages.ingest.limits import DEFAULT, Limits, use_limits
from stages.ingest.normal import Refused
from stages.ingest.onto import Onto, judged_late
from stages.ingest.pieces import Piece, content_key
from stages.ingest.pseudonyms import numbered
from stages.ingest.ranges import Made, Ranges, made_of
from stages.ingest.records import Record, fingerprint, records_of
from stages.ingest.redact import Redactor
from stages.ingest.rewards import Values, values_of
from stages.ingest.snapshot import record_of
from stages.ingest.spool import PARTS, Packed, Spool, traces_in

ITEMS = "items-*"
"""Folders of items, one of each process that read files."""


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
        return sorted(self.folder.glob(ITEMS))

    def packed(self, place: int) -> Iterator[tuple[Packed, bool]]:
        """The traces of one part, and whether each was to be forgotten."""
        for packed in traces_in(self.spools(), place):
            yield packed, bool(self.forgotten) and trace_digest(packed.id) in self.forgotten

    def traces(self, place: int) -> Iterator[Trace]:
        """Those that count, in normal form, with pseudonyms in the place of marks."""
        return (self.trace(packed) for packed, forgotten in self.packed(place) if not forgotten)

    def trace(self, packed: Packed) -> Trace:
        """One of them."""
        return numbered(packed.trace()) if self.redacted else packed.trace()


class Reading:
    """Reads pieces of files into a spool of this process."""

    def __init__(self, lying: Lying, redactor: Redactor | None) -> None:
        use_limits(lying.limits)
        self.lying, self.redactor = lying, redactor
        self.leaves = lying.folder / f"items-{uuid4().hex}"
        """Folder that this process writes into."""
        self.spool = Spool(self.leaves)


@dataclass
class Read:
    """What came of a piece."""

    address: str
    end: int
    """See `Piece`."""
    spans: int = 0
    refused: list[Refused] = field(default_factory=list)

    @classmethod
    def refusal(cls, item: Refused) -> Read:
        """That there is nothing to read."""
        return cls(item.where, 0, refused=[_without_secrets(item)])

    def as_json(self) -> list[Any]:
        """What is noted of it, without its address, which may hold credentials."""
        return [self.spans, [[item.reason, item.detail, item.where, item.trace] for item in self.refused]]

    @classmethod
    def of_json(cls, piece: Piece, noted: list[Any]) -> Read:
        """What `as_json` gave."""
        spans, refused = noted
        return cls(piece.address, piece.end, spans, [Refused(*item) for item in refused])


def named(piece: Piece, format_name: str) -> str:
    """A name for what comes of a piece: another for another content, format or place in another file."""
    content = content_key(piece) or uuid4().hex
    return digest([without_secrets(piece.address), format_name, piece.before, content])


def read_piece(state: Reading, task: tuple[Piece, str, str] | Read) -> Read:
    """Read a piece of a file in the format of a name, and note it under a name of its own.

    What was read before, or could not be, is passed on in its turn.
    """
    if isinstance(task, Read):
        return task
    piece, format_name, name = task
    read, before = Read(piece.address, piece.end), state.spool.spans
    for found in piece_items(piece, format_named(format_name)):
        item = redacted(found, state.redactor)
        failed = None if isinstance(item, Refused) and item.trace is None else state.spool.add(item, format_name)
        if isinstance(item, Refused):
            read.refused.append(item)
        elif failed is not None:
            read.refused.append(failed)
    read.spans = state.spool.spans - before
    read.refused = [_without_secrets(item) for item in read.refused]
    state.spool.done(name, read.as_json())
    return read


def _without_secrets(item: Refused) -> Refused:
    """A refusal whose addresses have lost the credentials that they hold."""
    return replace(item, where=without_secrets(item.where), detail=without_secrets(item.detail))


@dataclass
class Told:
    """What the traces of a part are."""

    entries: list[Entry]
    forgotten: int
    """Traces that were left out, since they were to be forgotten."""
    name: str
    """Of what is made of them: another where the traces, or how often their spans were recorded, are others."""


def tell_part(state: Reading, place: int) -> Told:
    """What the traces of one part are, once all files are read."""
    lying = state.lying
    entries: list[Entry] = []
    forgotten = records = 0
    for packed, gone in lying.packed(place):
        forgotten += gone
        if not gone:
            records += sum(map(len, packed.spans.values()))
            entries.append(entry_of(lying.trace(packed)) if lying.redacted else entry_of_packed(packed))
    return Told(entries, forgotten, digest([place, entries, records]))


class Making:
    """Makes records of traces, and cuts them into ranges of this process.

    Args:
        lying: the traces.
        assembler: of the recipe.
        secret: of example ids.
        onto: the snapshot that they come onto, if they do.
        folder: for ranges.
        count: of ranges.
    """

    def __init__(
        self,
        lying: Lying,
        assembler: Assembler,
        secret: bytes | None,
        onto: Onto | None,
        *,
        folder: Path,
        count: int,
    ) -> None:
        self._lying, self._assembler, self._secret, self.onto = lying, assembler, secret, onto
        self.leaves = folder / uuid4().hex
        """Folder that this process writes into."""
        self.ranges = Ranges(self.leaves, count)

    def records(self, place: int) -> Iterator[tuple[Record, int]]:
        """See `record_of`."""
        return (record_of(made, self._secret) for made in self._assembler.each(self._lying.traces(place)))

    @property
    def section(self) -> IngestSection:
        """How traces are read."""
        return self._assembler.section

    def late(self) -> Iterator[tuple[str, Values]]:
        """The scores of traces of which nothing else has come, by trace."""
        wanted = self.onto.late if self.onto is not None else ()
        for place in range(PARTS) if wanted else ():
            for packed, forgotten in self._lying.packed(place):
                if packed.id in wanted and not forgotten:
                    yield packed.id, values_of(packed.trace().scores, None)


@dataclass
class Part:
    """What came of a part of the traces."""

    account: Account = field(default_factory=Account)
    repeated: int = 0
    """Records that were a further one of a span."""
    prints: dict[str, str] = field(default_factory=dict)
    """Fingerprints of the records of traces that an older snapshot has too."""
    judged: dict[str, str] = field(default_factory=dict)
    """Of an older snapshot's records: those that they have with scores that came later."""

    def as_json(self) -> list[Any]:
        """What is noted of it."""
        return [self.account.as_json(), self.repeated, self.prints, self.judged]

    @classmethod
    def of_json(cls, noted: list[Any]) -> Part:
        """What `as_json` gave."""
        account, *more = noted
        return cls(Account.of_json(account), *more)


def make_part(state: Making, task: tuple[int, str]) -> Part:
    """Make the records of a part, and note it under its name."""
    place, name = task
    part, onto = Part(), state.onto
    for record, further in state.records(place):
        if onto is not None and record.id in onto.late:
            continue
        if onto is not None and record.id in onto.again:
            part.prints[record.id] = fingerprint(record, scored=onto.scored)
        _add(record, part, state)
        part.repeated += further
    state.ranges.done(name, part.as_json())
    return part


def take_older(state: Making, name: str) -> Part:
    """Take over what stays of the snapshot that the traces come onto, and note it under a name."""
    part, onto = Part(), state.onto
    assert onto is not None
    late = dict(state.late())
    for record in records_of(onto.folder):
        if record.id in onto.again or record.id in onto.late:
            part.prints[record.id] = fingerprint(record, scored=onto.scored)
        if record.id in onto.late:
            judged = judged_late(record, late.get(record.id, {}), state.section)
            part.judged[record.id] = fingerprint(judged, scored=onto.scored)
            _add(judged, part, state)
        elif record.id not in onto.again:
            _add(record, part, state)
    state.ranges.done(name, part.as_json())
    return part


def _add(record: Record, part: Part, state: Making) -> None:
    part.account.count(record)
    state.ranges.add(record)


def make_range(_: Making, task: tuple[list[Path], int, float]) -> Made:
    """The tables of one range of records; see `made_of`."""
    return made_of(*task)
