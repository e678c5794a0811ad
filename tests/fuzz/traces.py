"""What is asked of every reader of traces: a file is read or refused, with its name, and all of it is accounted."""

from __future__ import annotations

import contextlib
import io
import json
import os
import shutil
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from random import Random

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.cli import main
from pipeline.manifests import check_files, read_manifest
from pipeline.store import Store
from schemas.recipe_ingest import IngestSection
from stages.ingest.assemble import Assembler
from stages.ingest.content import entry_of, entry_of_packed
from stages.ingest.formats import BUILT_IN, Format, format_named, piece_items, pieces, recognise
from stages.ingest.normal import Item, Refused, Score, Span
from stages.ingest.records import fingerprint
from stages.ingest.snapshot import record_of
from stages.ingest.spool import PARTS, Spool, traces_in
from tests.test_e2e.kit import own_recipe
from tests.test_e2e.test_traces import export, trace
from tests.test_stages.engines_kit import tiny
from tests.test_stages.ingest_kit import sample_files
from tests.test_stages.ingest_values import VALUES

FURTHER = "MMGRPO_FUZZ_TRACES"
"""An environment variable: a folder with a folder of more samples for each format."""


@cache
def seeds(name: str, *, further: bool = False) -> tuple[bytes, ...]:
    """Sample files of a format, and small values of its layouts; of `auto`, of all formats."""
    values = [json.dumps(value).encode() + b"\n" for kind, value in VALUES.values() if name in (kind, "auto")]
    folder = os.environ.get(FURTHER) if further else None
    more = sorted(Path(folder).glob("*/*")) if folder else []
    files = [path for path in (*sample_files(), *more) if path.suffix != ".md"]
    known = {path: recognise(str(path)) for path in files}
    mine = [path for path, kind in known.items() if name == "auto" or getattr(kind, "NAME", "") == name]
    return (*values, *(path.read_bytes() for path in mine))


GOOD = f"{1:032x}"
"""The trace of the good file among spoilt ones."""


def tables(data: bytes, draw: Random) -> bytes:
    """Lines of JSON as a Parquet file, where that can be had; then with some of its bytes changed."""
    try:
        rows = [json.loads(line) for line in data.splitlines() if line.strip()]
        sink = pa.BufferOutputStream()
        pq.write_table(pa.Table.from_pylist(rows), sink, compression=draw.choice(["none", "zstd", "snappy"]))
    except Exception:  # noqa: BLE001 - rows that are no table
        return data
    made = bytearray(sink.getvalue().to_pybytes())
    for _ in range(draw.choice([0, 1, 4])):
        made[draw.randrange(len(made))] = draw.randrange(256)
    return bytes(made)


def judge(path: Path, name: str, work: Path, assembler: Assembler) -> int:
    """Read a file as `ingest` does, and put its traces together. Returns how many items it holds.

    Raises:
        AssertionError: when something is not accounted for. Whatever else is raised is a fault too.
    """
    known: Format | Refused = recognise(str(path)) if name == "auto" else format_named(name)
    if isinstance(known, Refused):
        assert path.name in known.where
        return 1
    spool, held = Spool(work / "spool"), 0
    try:
        for item in _items(path, known):
            held += 1
            assert isinstance(item, (Span, Score, Refused)), type(item)
            assert path.name in item.where, item.where
            if item.trace is not None:
                spool.add(item, known.NAME)
        spool.flush()
        _assemble(work / "spool", assembler)
    finally:
        shutil.rmtree(work / "spool", ignore_errors=True)
    return held


def _items(path: Path, known: Format) -> Iterator[Item]:
    for piece in pieces(str(path), known):
        yield from [piece] if isinstance(piece, Refused) else piece_items(piece, known)


def _assemble(spool: Path, assembler: Assembler) -> None:
    for place in range(PARTS):
        for packed in traces_in([spool], place):
            assert entry_of_packed(packed) == entry_of(packed.trace())
            (made,) = assembler.each([packed.trace()])
            record, _ = record_of(made, None)
            assert record.id == packed.id
            assert (record.rollout is None) == (record.trace["reason"] is not None)
            fingerprint(record, scored=True)


@cache
def assembler_in(cache_folder: Path) -> Assembler:
    """Of a program with one input."""
    from stages.engines.models import eos_ids, load_tokenizer
    from stages.ingest.tokens import Encoder

    base = tiny(cache_folder)
    encoder = Encoder(load_tokenizer(base), frozenset(eos_ids(base)))
    section = IngestSection.model_validate({"modules": [{"module": "m", "span": ".*"}]})
    return Assembler(["question"], section, encoder, {"tokenizer": "T", "template": "P"})


def neighbours(spoilt: list[bytes], folder: Path) -> pl.DataFrame:
    """Ingest spoilt files beside a good one, whose trace is `GOOD`, by the command line; the snapshot's traces."""
    recipe, traces, snapshots = own_recipe(folder / "own"), folder / "traces", folder / "snapshots"
    traces.mkdir()
    for place, data in enumerate(spoilt):
        (traces / f"f{place:03d}").write_bytes(data)
    export(trace(int(GOOD, 16), "word", "said", 0.5), traces / "good.json")
    settings = ("--snapshots", snapshots, "--exec", "progress=off", "--exec", "ingest_workers=1")
    with contextlib.redirect_stdout(io.StringIO()):
        assert main([str(part) for part in ("ingest", recipe, traces, *settings)]) == 0
    (made,) = [path for _, path in Store(snapshots).all()]
    assert not check_files(made, read_manifest(made / "manifest.json"))
    return pl.read_parquet(made / "traces.parquet")


def judge_neighbours(spoilt: list[bytes], folder: Path) -> None:
    """The good trace is a rollout of the snapshot."""
    assert is_rollout(GOOD, neighbours(spoilt, folder))


def is_rollout(name: str, traces: pl.DataFrame) -> bool:
    """Whether a trace is there once, as a rollout."""
    rows = traces.filter(pl.col("trace") == name)
    return rows["rollout_id"].is_not_null().to_list() == [True]


FORMATS = (*BUILT_IN, "auto")
