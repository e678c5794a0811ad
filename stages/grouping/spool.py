"""An external sort of rollouts and invocations into ranges of example_id: bounded memory for tables in any order."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import polars as pl

from stages.grouping.hashing import U64, fold_strings, start
from stages.grouping.scan import Scan
from stages.grouping.tables import Tables

Read = Callable[[pl.LazyFrame], pl.DataFrame]
SAMPLE = 1_000_000
"""Examples that boundaries are computed from, at most."""


def spool(tables: Tables, rows: int, folder: Path, read: Read) -> Iterator[tuple[pl.DataFrame, pl.DataFrame]]:
    """Rollouts and calls of one range of example_id after the other.

    Rollouts are cut by example_id; each call follows its rollout, found by a 64-bit hash of rollout_id (12 bytes of
    memory a rollout). A call whose rollout is in no file goes to the first range, where its absence is reported.

    Args:
        tables: what to sort.
        rows: invocations wanted in a range; a range holds at least one example.
        folder: for temporary files; emptied range by range.
        read: collects and checks a scan.
    """
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    bounds = _bounds(tables, max(1, -(-tables.calls.rows // rows)), rows, read)
    hashes, ranges = _spool_rollouts(tables, bounds, rows, folder, read)
    for part, frame in enumerate(_slices(tables.calls, rows, read)):
        keys = _hash(frame.get_column("rollout_id"))
        at = np.minimum(np.searchsorted(hashes, keys), max(0, len(hashes) - 1))
        known = hashes[at] == keys if len(hashes) else np.zeros(len(keys), dtype=bool)
        target = np.where(known, ranges[at], 0) if len(hashes) else np.zeros(len(keys), dtype=np.int32)
        _write(frame, target, folder, "calls", part)
    for number in range(len(bounds) + 1):
        yield (
            _read_range(folder, "rollouts", number, tables.rollouts),
            _read_range(folder, "calls", number, tables.calls),
        )
    shutil.rmtree(folder)


def _slices(table: Scan, rows: int, read: Read) -> Iterator[pl.DataFrame]:
    for at in range(0, table.rows, rows):
        yield read(table.frame(at, rows))


def _bounds(tables: Tables, ranges: int, rows: int, read: Read) -> pl.Series:
    """First example_id of every range but the first, so that ranges hold about equally many examples."""
    kept, every = pl.Series("example_id", [], dtype=pl.String), 1
    for frame in _slices(tables.rollouts, rows, read):
        new = frame.get_column("example_id").unique()
        chosen = _hash(new) % np.uint64(every) == 0
        kept = pl.concat([kept, new.filter(pl.Series(chosen))]).unique()
        while kept.len() > SAMPLE:
            every *= 2
            kept = kept.filter(pl.Series(_hash(kept) % np.uint64(every) == 0))
    kept = kept.sort()
    places = [kept.len() * number // ranges for number in range(1, ranges)]
    return kept.gather(sorted({place for place in places if 0 < place < kept.len()}))


def _spool_rollouts(tables: Tables, bounds: pl.Series, rows: int, folder: Path, read: Read) -> tuple[U64, np.ndarray]:
    """Write rollouts by range; returns the sorted hashes of their ids, and the range of each."""
    hashes, ranges = [], []
    for part, frame in enumerate(_slices(tables.rollouts, rows, read)):
        target = bounds.search_sorted(frame.get_column("example_id"), side="right").to_numpy().astype(np.int32)
        _write(frame, target, folder, "rollouts", part)
        hashes.append(_hash(frame.get_column("rollout_id")))
        ranges.append(target)
    keys = np.concatenate(hashes) if hashes else np.zeros(0, dtype=np.uint64)
    order = np.argsort(keys, kind="stable")
    return keys[order], (np.concatenate(ranges) if ranges else np.zeros(0, dtype=np.int32))[order]


def _hash(ids: pl.Series) -> U64:
    return fold_strings(start(0, ids.len()), ids)


def _write(frame: pl.DataFrame, target: np.ndarray, folder: Path, name: str, part: int) -> None:
    column = pl.Series("range", target)
    for (number,), rows in frame.with_columns(column).partition_by("range", as_dict=True, include_key=False).items():
        # Not IPC: it would write the text buffers of the whole frame into every part.
        rows.write_parquet(folder / f"{name}-{number}-{part}.parquet", compression="lz4", statistics=False)


def _read_range(folder: Path, name: str, number: int, like: Scan) -> pl.DataFrame:
    """The rows of one range, whose files are then removed."""
    files = sorted(folder.glob(f"{name}-{number}-*.parquet"))
    frames = [pl.read_parquet(file, glob=False) for file in files]
    for file in files:
        file.unlink()
    empty = like.frame(0, 0).collect()
    return pl.concat([empty.drop("sound", strict=False), *frames])
