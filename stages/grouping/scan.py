"""Lazy scans of rollouts and invocations, whatever the layout of their files.

Files of one layout (same columns and types, hive keys in the path or not) become one scan. Integers and floats of
another width, large or dictionary strings, all-null columns, extra columns and another column order are taken as
they are meant; anything else is a `ContractError` that names the file.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq

from schemas.errors import ContractError, Violation
from schemas.parquet import preflight
from schemas.table import TableSpec
from schemas.validate import same_kind

LISTS = ("prompt_ids", "completion_ids")


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


def layout(path: Path, spec: TableSpec, columns: Sequence[str], lists: Sequence[str]) -> tuple[Layout, int]:
    """The layout of one file, and its number of rows.

    Raises:
        ContractError: naming the file, when it is unreadable, of another table or version, or lacks a column.
    """
    footer = preflight(path, spec)
    present = footer.schema.to_arrow_schema()
    hive = tuple(name for name in columns if name not in present.names and f"/{name}=" in path.as_posix())
    wanted = [name for name in (*columns, *lists) if name not in hive]
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


def scan(layout_: Layout, files: Iterable[Path], spec: TableSpec) -> pl.LazyFrame:
    """One scan of files of one layout, every column cast to the type of the spec."""
    types = _polars({name: type_ for name, type_ in layout_.types if name not in layout_.complete})
    exact = _polars({field.name: field.type for field in spec.schema})
    frame = pl.scan_parquet(
        list(files),
        schema=types,
        hive_partitioning=bool(layout_.hive),
        hive_schema={name: exact[name] for name in layout_.hive} or None,
        extra_columns="ignore",
        glob=False,
    )
    names = [*types, *layout_.hive]
    known = {**types, **{name: exact[name] for name in layout_.hive}}
    return frame.select(
        pl.col(name) if known[name] == exact[name] or name in LISTS else pl.col(name).cast(exact[name])
        for name in names
    )


def _polars(types: dict[str, pa.DataType]) -> dict[str, pl.DataType]:
    empty = pl.from_arrow(pa.schema(list(types.items())).empty_table())
    assert isinstance(empty, pl.DataFrame)
    return dict(empty.schema)
