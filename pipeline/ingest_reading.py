"""Files of traces, read into spools by as many processes as there are, and what they hold."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import accumulate
from pathlib import Path

from pipeline.ingest_steps import Lying, Reading, read_piece, tell_part
from pipeline.pool import Pool, cores, pool_of
from pipeline.progress import Reporter
from schemas.addresses import without_secrets
from schemas.execution import Execution
from stages.ingest.content import Entries
from stages.ingest.formats import AUTO, Format, format_named, pieces, recognise
from stages.ingest.normal import Refused
from stages.ingest.read import Piece, find_files, size_of
from stages.ingest.redact import Redactor
from stages.ingest.spool import PARTS

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
    wanted: Wanted, lying: Lying, redactor: Redactor | None, workers: int, reporter: Reporter
) -> tuple[Sources, Entries]:
    """Read every file into spools, what the recipe takes out of traces already taken out; and what each trace is.

    Raises:
        RecipeError: for an unknown format.
        DataError: for an address without a file.
    """
    # The marks of one trace are made with one key, which no other process gets.
    with pool_of(workers if redactor is None else 1, partial(Reading, lying, redactor)) as pool:
        reporter.start("reading traces")
        try:
            sources = _read(wanted, pool, reporter)
            entries = Entries(lying.folder / "entries")
            for number, told in enumerate(pool.each(tell_part, range(PARTS)), start=1):
                entries.add(told.entries)
                sources.forgotten += told.forgotten
                reporter.update(number, PARTS, "parts compared", {})
        finally:
            reporter.stop()
    return sources, entries


def _read(wanted: Wanted, pool: Pool, reporter: Reporter) -> Sources:
    sources = Sources()
    given = None if wanted.format == AUTO else format_named(wanted.format)
    sizes = {file: size_of(file) for address in wanted.addresses for file in find_files(address)}
    behind = dict(zip(sizes, accumulate([0, *sizes.values()]), strict=False))
    total, began = max(1, sum(sizes.values()) >> 20), time.monotonic()

    def tasks() -> Iterator[tuple[Piece, str] | Refused]:
        for file in sizes:
            known: Format | Refused = given or recognise(file)
            sources.files[without_secrets(file)] = "" if isinstance(known, Refused) else known.NAME
            if isinstance(known, Refused):
                yield known
                continue
            for piece in pieces(file, known):
                yield piece if isinstance(piece, Refused) else (piece, known.NAME)

    for read in pool.each(read_piece, tasks()):
        sources.spans += read.spans
        sources.refused += map(_without_secrets, read.refused)
        done = min(total, (behind.get(read.address, 0) + read.end) >> 20)
        rate = sources.spans / max(time.monotonic() - began, 1e-9)
        reporter.update(done, total, "MiB", {"spans": sources.spans, "spans_per_second": rate})
    return sources


def _without_secrets(item: Refused) -> Refused:
    """A refusal whose addresses have lost the credentials that they hold."""
    return replace(item, where=without_secrets(item.where), detail=without_secrets(item.detail))
