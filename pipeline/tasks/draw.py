"""Seeded draws and the writing of a task's examples: the same files on every machine and Python version."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.tasks.text import normalise
from schemas.canonical import digest
from schemas.errors import DataError

Row = dict[str, Any]
T = TypeVar("T")


def shuffled(items: Sequence[T], seed: int, key: Callable[[T], str]) -> list[T]:
    """The items in a seeded order that depends on their keys alone, not on the order they came in."""
    return sorted(items, key=lambda item: digest([seed, key(item)]))


def draw(rows: Sequence[Row], count: int, *, seed: int, by: str, what: str) -> list[Row]:
    """`count` rows drawn without replacement, by the digest of (seed, normalised text of column `by`).

    Raises:
        DataError: when there are fewer rows.
    """
    if len(rows) < count:
        raise DataError(f"{what}: {count} rows are wanted and the source has {len(rows)} that qualify")
    return shuffled(rows, seed, lambda row: normalise(row[by]))[:count]


def distinct(rows: Sequence[Row], by: str) -> list[Row]:
    """The first row of every normalised text of column `by`, in source order."""
    seen: dict[str, Row] = {}
    for row in rows:
        seen.setdefault(normalise(row[by]), row)
    return list(seen.values())


def write_examples(path: Path, rows: Sequence[Row], schema: pa.Schema) -> None:
    """Write examples as one Parquet file with equal bytes for equal rows."""
    path.parent.mkdir(parents=True, exist_ok=True)
    table = pa.Table.from_pylist(list(rows), schema=schema)
    pq.write_table(table, path, compression="zstd", compression_level=9)
