"""Files of traces, read into spools by as many processes as there are, and what they hold."""

from __future__ import annotations

import shutil
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from itertools import accumulate
from pathlib import Path

from pipeline.ingest_steps import ITEMS, Lying, Read, Reading, named, read_piece, tell_part
from pipeline.pool import Pool, Pools, cores, pool_of
from pipeline.progress import Reporter
from schemas.addresses import without_secrets
from schemas.execution import Execution
from stages.ingest.content import Entries
from stages.ingest.files import find_files, size_of
from stages.ingest.formats import AUTO, Format, format_named, pieces, recognise
from stages.ingest.normal import Refused
from stages.ingest.pieces import Piece
from stages.ingest.redact import Redactor
from stages.ingest.spool import PARTS
from stages.ingest.taken_up import TakenUp

LARGE = 256 << 20
"""Bytes of files from which on it is worth seconds to start processes."""


@dataclass(frozen=True)
class Wanted:
    """What is to be read."""

    addresses: tuple[str, ...]
    """Files, folders, patterns, of any kind that fsspec knows."""
    format: str = AUTO
    """Of all files, or `auto`."""
    rescore: bool = False
    """Score the logged outputs with the program's metric."""
    onto: Path | None = None
    """A snapshot that the traces come onto."""


@dataclass
class Sources:
    """What was read from where."""

    files: dict[str, str] = field(default_factory=dict)
    """Format by file; "" for one that was refused."""
    refused: list[Refused] = field(default_factory=list)
    spans: int = 0
    forgotten: int = 0
    """Traces that were left out, since they were to be forgotten."""
    parts: list[str] = field(default_factory=list)
    """The name of each part; see `Told`."""

    @property
    def counts(self) -> dict[str, int]:
        """Refusals by reason."""
        return dict(sorted(Counter(item.reason for item in self.refused).items()))


def workers_for(wanted: Wanted, execution: Execution) -> int:
    """How many processes share the work.

    Raises:
        DataError: for an address without a file.
    """
    if execution.ingest_workers is not None:
        return execution.ingest_workers
    large = sum(size_of(file) for address in wanted.addresses for file in find_files(address)) >= LARGE
    return cores() if large else 1


def read_all(
    wanted: Wanted, lying: Lying, redactor: Redactor | None, workers: int | Pools, reporter: Reporter
) -> tuple[Sources, Entries]:
    """Read every file into spools, what the recipe takes out of traces already taken out; and what each trace is.

    Raises:
        RecipeError: for an unknown format.
        DataError: for an address without a file.
    """
    shutil.rmtree(lying.folder / "entries", ignore_errors=True)
    left = TakenUp(lying.folder, ITEMS)
    # The marks of one trace are made with one key, which no other process gets.
    with pool_of(workers if redactor is None else 1, partial(Reading, lying, redactor)) as pool:
        reporter.start("reading traces")
        try:
            sources = _read(wanted, pool, left, reporter)
            entries = Entries(lying.folder / "entries")
            for number, told in enumerate(pool.each(tell_part, range(PARTS)), start=1):
                entries.add(told.entries)
                sources.forgotten += told.forgotten
                sources.parts.append(told.name)
                reporter.update(number, PARTS, "parts compared", {})
        finally:
            reporter.stop()
    return sources, entries


def _read(wanted: Wanted, pool: Pool, left: TakenUp, reporter: Reporter) -> Sources:
    sources, kept = Sources(), set[str]()
    given = None if wanted.format == AUTO else format_named(wanted.format)
    sizes = {file: size_of(file) for address in wanted.addresses for file in find_files(address)}
    behind = dict(zip(sizes, accumulate([0, *sizes.values()]), strict=False))
    total, began = max(1, sum(sizes.values()) >> 20), time.monotonic()

    def tasks() -> Iterator[tuple[Piece, str, str] | Read]:
        for file in sizes:
            known: Format | Refused = given or recognise(file)
            sources.files[without_secrets(file)] = "" if isinstance(known, Refused) else known.NAME
            if isinstance(known, Refused):
                yield Read.refusal(known)
                continue
            for piece in pieces(file, known):
                yield _task(piece, known.NAME, left, kept)

    for read in pool.each(read_piece, tasks()):
        sources.spans += read.spans
        sources.refused += read.refused
        done = min(total, (behind.get(read.address, 0) + read.end) >> 20)
        rate = sources.spans / max(time.monotonic() - began, 1e-9)
        reporter.update(done, total, "MiB", {"spans": sources.spans, "spans_per_second": rate})
    left.keep(kept)
    return sources


def _task(piece: Piece | Refused, format_name: str, left: TakenUp, kept: set[str]) -> tuple[Piece, str, str] | Read:
    """What is to be done of a piece, or what came of it when an earlier process read it. That is kept."""
    if isinstance(piece, Refused):
        return Read.refusal(piece)
    name = named(piece, format_name)
    if name not in left.told:
        return piece, format_name, name
    kept.add(name)
    return Read.of_json(piece, left.told[name])
