"""Lazy scans of rollouts and invocations, whatever the layout of their files.

Files of one layout (same columns and types, hive keys in the path or not) become one scan. Integers and floats of
another width, large or dictionary strings, all-null columns, extra columns and another column order are taken as
they are meant; anything else is a `ContractError` that names the file.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq

from schemas.errors import ContractError, Violation
from schemas.parquet import preflight
from schemas.table import TableSpec
from schemas.validate import same_kind

LISTS = ("prompt_ids", "completion_ids", "student_prompt_ids")


@dataclass(frozen=True)
class Layout:
    """What files have in common: the types of the columns to read, hive keys, and what is known of lists.

    Attributes:
        types: name and Arrow type of each column to read.
        hive: columns that stand in the path.
        complete: lists that the footers show to be neither null nor empty anywhere.
    """

    types: tuple[tuple[str, pa.DataType], ...]
    hive: tuple[str, ...]
    complete: tuple[str, ...]


def layout(
    path: Path, spec: TableSpec, columns: Sequence[str], lists: Sequence[str], optional: Sequence[str] = ()
) -> tuple[Layout, int]:
    """The layout of one file, and its number of rows. Columns that are `optional` are read where they are there.

    Raises:
        ContractError: naming the file, when it is unreadable, of another table or version, or lacks a column.
    """
    footer = preflight(path, spec)
    present = footer.schema.to_arrow_schema()
    hive = tuple(name for name in columns if name not in present.names and f"/{name}=" in path.as_posix())
    there = [name for name in optional if name in present.names]
    wanted = [name for name in (*columns, *lists, *there) if name not in hive]
    broken = [Violation(f"column '{name}' is present", footer.num_rows) for name in wanted if name not in present.names]
    for name in wanted:
        if name in present.names and not same_kind(present.field(name).type, spec.schema.field(name).type):
            rule = f"column '{name}' has type {spec.schema.field(name).type} (got {present.field(name).type})"
            broken.append(Violation(rule, footer.num_rows))
    if broken:
        raise ContractError(spec.name, str(path), broken)
    types = tuple((name, present.field(name).type) for name in wanted)
    return Layout(types, hive, tuple(name for name in lists if _complete(footer, name))), footer.num_rows


def _complete(footer: pq.FileMetaData, name: str) -> bool:
    """Whether the footer's statistics show that a list column holds neither nulls nor empty lists."""
    for index in range(footer.num_row_groups):
        group = footer.row_group(index)
        parts = (group.column(i) for i in range(group.num_columns))
        leaf = next(part for part in parts if part.path_in_schema.split(".")[0] == name)
        if leaf.statistics is None or not leaf.statistics.has_null_count or leaf.statistics.null_count:
            return False
    return True


@dataclass(frozen=True)
class Scan:
    """Rows of many files, readable by place: files of one layout stand together, in the order given.

    Attributes:
        parts: files of one layout each, their rows, and how they are scanned.
    """

    parts: tuple[tuple[tuple[Path, ...], tuple[int, ...], Callable[[Sequence[Path]], pl.LazyFrame]], ...]

    @property
    def rows(self) -> int:
        """Rows of all files."""
        return sum(sum(counts) for _, counts, _ in self.parts)

    def frame(self, start: int = 0, rows: int | None = None) -> pl.LazyFrame:
        """Rows from `start` on, all of them or `rows`; no other file is opened."""
        stop = self.rows if rows is None else min(start + rows, self.rows)
        frames, at = [], 0
        for files, counts, make in self.parts:
            ends = list(accumulate(counts, initial=at))
            inside = [i for i in range(len(files)) if ends[i] < stop and ends[i + 1] > start]
            if inside:
                first, last = ends[inside[0]], ends[inside[-1] + 1]
                begin, end = max(start, first), min(stop, last)
                part = make([files[i] for i in inside])
                frames.append(part if (begin, end) == (first, last) else part.slice(begin - first, end - begin))
            at = ends[-1]
        return pl.concat(frames) if frames else self.parts[0][2](self.parts[0][0][:1]).limit(0)


def scan(layout_: Layout, files: Sequence[Path], spec: TableSpec) -> pl.LazyFrame:
    """One scan of files of one layout, every column cast to the type of the spec."""
    types = _polars({name: type_ for name, type_ in layout_.types if name not in layout_.complete})
    exact = _polars({field.name: field.type for field in spec.schema})
    known = {**types, **{name: exact[name] for name in layout_.hive}}
    frame = pl.scan_parquet(
        list(files),
        schema=types,
        hive_partitioning=bool(layout_.hive),
        hive_schema={name: exact[name] for name in layout_.hive} or None,
        extra_columns="ignore",
        glob=False,
    )
    same = {name for name, kind in known.items() if kind == exact[name] or name in LISTS}
    return frame.select(pl.col(name) if name in same else pl.col(name).cast(exact[name]) for name in known)


def _polars(types: dict[str, pa.DataType]) -> dict[str, pl.DataType]:
    empty = pl.from_arrow(pa.schema(list(types.items())).empty_table())
    assert isinstance(empty, pl.DataFrame)
    return dict(empty.schema)
