"""Writing a table piece by piece, in bounded memory, with the bytes that its rows alone decide.

Pieces may be of any size and may hold text as Arrow dictionaries (from integer codes, text is never built). Rows are
regrouped into row groups of a fixed size, and each text column gets one dictionary per row group, in order of first
appearance: the file does not depend on how its rows were cut into pieces.
"""

from __future__ import annotations

from pathlib import Path
from types import TracebackType
from typing import Self

import numpy as np
import numpy.typing as npt
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq

from schemas.parquet import ROW_GROUP
from schemas.table import NAME_KEY, VERSION_KEY, TableSpec
from schemas.validate import check_columns, check_rows


class TableWriter:
    """Writes one Parquet file of one table; every row group passes the table's contract.

    Keys are compared within a row group only: a stream cannot hold all keys, and its writer makes them unique.
    """

    def __init__(self, path: Path, spec: TableSpec, statistics: tuple[str, ...] = ()) -> None:
        """Open the file; `statistics` are the columns that readers filter by."""
        self._spec, self._path = spec, path
        fields = [field.with_type(_stored(field.type)) for field in spec.schema]
        metadata = {NAME_KEY: spec.name.encode(), VERSION_KEY: str(spec.version).encode()}
        self._schema = pa.schema(fields, metadata=metadata)
        self._writer = pq.ParquetWriter(
            path,
            self._schema,
            compression="zstd",
            compression_level=1,  # at these columns no larger than level 3
            write_statistics=list(statistics),
            store_schema=False,
        )
        # Without the Arrow schema the file lacks its metadata too: the table's name and version are added by hand.
        self._writer.add_key_value_metadata(metadata)
        self._waiting: list[pa.Table] = []
        self._rows = 0
        self.rows = 0
        """Rows written so far, those waiting for a full row group left out."""

    def write(self, piece: pa.Table) -> None:
        """Add rows.

        Raises:
            ContractError: with every broken rule, its count and three sample keys.
        """
        self._waiting.append(_stored_columns(piece, self._schema, self._spec, str(self._path)))
        self._rows += piece.num_rows
        while self._rows >= ROW_GROUP:
            self._flush(ROW_GROUP)

    def _flush(self, rows: int) -> None:
        waiting = pa.concat_tables(self._waiting)
        table = _compact(waiting.slice(0, rows), self._schema)
        _check(table, self._spec, str(self._path))
        self._writer.write_table(table, row_group_size=ROW_GROUP)
        rest = waiting.slice(rows)
        self._waiting, self._rows = ([rest] if rest.num_rows else []), rest.num_rows
        self.rows += rows

    def close(self) -> int:
        """Write what waits and the footer; returns the number of rows of the file."""
        if self._rows:
            self._flush(self._rows)
        self._writer.close()
        return self.rows

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.close()
        else:
            self._writer.close()


def _stored(kind: pa.DataType) -> pa.DataType:
    return pa.dictionary(pa.int32(), pa.string()) if pa.types.is_string(kind) else kind


def _stored_columns(piece: pa.Table, schema: pa.Schema, spec: TableSpec, where: str) -> pa.Table:
    """The piece's columns in the order and the types of the file; its dictionaries stay as they are."""
    if set(piece.schema.names) != set(schema.names):
        check_columns(piece, spec, where)
    columns = []
    for field in schema:
        column = piece.column(field.name)
        if not pa.types.is_dictionary(field.type):
            column = column.cast(field.type)
        elif not pa.types.is_dictionary(column.type):
            column = column.cast(pa.string()).dictionary_encode()
        columns.append(column)
    return pa.table(columns, names=schema.names)


def _compact(table: pa.Table, schema: pa.Schema) -> pa.Table:
    """The table with every text column as one dictionary, in order of first appearance, unused entries dropped."""
    columns = []
    for field, column in zip(schema, table.columns, strict=True):
        columns.append(_first_seen(column) if pa.types.is_dictionary(field.type) else column.combine_chunks())
    return pa.table(columns, schema=schema)


def _first_seen(column: pa.ChunkedArray) -> pa.DictionaryArray:
    whole = column.unify_dictionaries().combine_chunks()
    if whole.null_count or not len(whole):
        seen = whole.indices.dictionary_encode()
        codes, values = seen.indices, whole.dictionary.take(seen.dictionary)
    else:
        codes, values = _by_first(whole.indices.to_numpy(), whole.dictionary)
    return pa.DictionaryArray.from_arrays(codes, values.cast(pa.string()))


def _by_first(indices: npt.NDArray[np.int32], values: pa.Array) -> tuple[pa.Array, pa.Array]:
    """Indices renumbered in order of first appearance, and the values in that order."""
    low, high = int(indices.min()), int(indices.max())
    codes = indices - np.int32(low)
    if low == high or _climbs(codes):
        return pa.array(codes), values.slice(low, high - low + 1)
    first = np.full(high - low + 1, len(codes), dtype=np.int32)
    first[codes[::-1]] = np.arange(len(codes) - 1, -1, -1, dtype=np.int32)
    order = np.argsort(first, kind="stable")[: int((first < len(codes)).sum())]
    rank = np.empty(len(first), dtype=np.int32)
    rank[order] = np.arange(len(order), dtype=np.int32)
    return pa.array(rank[codes]), values.take(pa.array(order + low))


def _climbs(codes: npt.NDArray[np.int32]) -> bool:
    """Whether codes start at 0 and never fall nor skip one: their dictionary is in order already."""
    steps = np.diff(codes)
    return bool(codes[0] == 0 and steps.min(initial=0) >= 0 and steps.max(initial=0) <= 1)


def _check(table: pa.Table, spec: TableSpec, where: str) -> None:
    """`check_rows`, first on dictionaries and codes alone; in full, for its message, only when something is wrong."""
    nulls = any(table.column(field.name).null_count for field in spec.schema if not field.nullable)
    if nulls or _repeats(table, spec) or any(_broken(table, spec)):
        plain = table.cast(pa.schema([field.with_nullable(True) for field in spec.schema]))
        check_rows(check_columns(plain, spec, where), spec, where)


def _repeats(table: pa.Table, spec: TableSpec) -> bool:
    """Whether a key stands twice. Keys that rise from row to row, as in most streams, need no search."""
    codes = [_codes(table.column(name)) for name in spec.key]
    frame = pl.DataFrame({str(index): values for index, values in enumerate(codes)})
    if frame.height < 2 or not sum(values.null_count() for values in codes):
        rises = pl.lit(False)
        for name in reversed(frame.columns):
            rises = (pl.col(name) > pl.col(name).shift()) | ((pl.col(name) == pl.col(name).shift()) & rises)
        if frame.select(rises.slice(1).all()).item():
            return False
    return frame.n_unique() < frame.height


def _codes(column: pa.ChunkedArray) -> pl.Series:
    whole = column.combine_chunks()
    values = pl.from_arrow(whole.indices if pa.types.is_dictionary(whole.type) else whole)
    assert isinstance(values, pl.Series)
    return values


def _broken(table: pa.Table, spec: TableSpec) -> list[bool]:
    """Whether each rule is broken; rules on one text column look at its dictionary alone."""
    short = [rule for rule in spec.rules if len(rule.columns) == 1 and _is_text(table, rule.columns[0])]
    rest = [rule for rule in spec.rules if rule not in short]
    found = []
    for rule in short:
        name = rule.columns[0]
        frame = pl.DataFrame({name: pl.from_arrow(table.column(name).combine_chunks().dictionary)})
        found.append(bool(frame.select(rule.broken().fill_null(False).any()).item()))
    if rest:
        frame = pl.DataFrame(pl.from_arrow(table.select(sorted({name for rule in rest for name in rule.columns}))))
        broken = [rule.broken().fill_null(False).any().alias(str(at)) for at, rule in enumerate(rest)]
        found += frame.select(broken).row(0)
    return found


def _is_text(table: pa.Table, name: str) -> bool:
    return bool(pa.types.is_dictionary(table.column(name).type))
