"""The one place where tables are written and read: every table passes its contract here, both ways.

Files are byte-stable: same rows in the same order give the same bytes (fixed compression, fixed row groups, one
writer). The table's name and schema version stand in the Parquet footer.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq

from schemas.errors import ContractError, Violation
from schemas.table import NAME_KEY, VERSION_KEY, TableSpec
from schemas.validate import check_columns, check_rows

if TYPE_CHECKING:
    import polars as pl

ROW_GROUP = 1 << 17


def write_table(rows: pa.Table | pl.DataFrame | Sequence[dict[str, Any]], path: Path, spec: TableSpec) -> int:
    """Validate rows and write them to one Parquet file.

    Args:
        rows: an Arrow table, a Polars frame, or row dictionaries; columns in any order, exact types or types that
            cast without loss.
        path: the file to write; its folder exists.
        spec: the table that this is.

    Returns:
        The number of rows written.

    Raises:
        ContractError: with every broken rule, its count and three sample keys. Nothing is written then.
    """
    table = check_columns(as_arrow(rows, spec, str(path)), spec, str(path))
    check_rows(table, spec, str(path))
    metadata = {NAME_KEY: spec.name.encode(), VERSION_KEY: str(spec.version).encode()}
    table = table.combine_chunks().cast(spec.schema).replace_schema_metadata(metadata)
    pq.write_table(table, path, compression="zstd", compression_level=3, row_group_size=ROW_GROUP)
    return int(table.num_rows)


def read_table(
    files: Path | Iterable[Path], spec: TableSpec, *, columns: Sequence[str] | None = None, validate: bool = True
) -> pa.Table:
    """Read one table from one or many files, in the order given.

    Args:
        files: Parquet files.
        spec: the table that they must be.
        columns: read only these; rules that need other columns are then not checked.
        validate: check rows as well as columns. Off where the same bytes were checked when they were written and
            their digest has been compared since.

    Raises:
        ContractError: naming the file, when a file cannot be read, is of an unknown version, or breaks a rule.
    """
    paths = [files] if isinstance(files, Path) else list(files)
    names = list(spec.schema.names) if columns is None else list(columns)
    parts = [check_columns(_read_file(path, spec, names), spec, str(path), names) for path in paths]
    schema = pa.schema([spec.schema.field(name) for name in names])
    table = pa.concat_tables(parts) if parts else schema.empty_table()
    if validate:
        check_rows(table, spec, ", ".join(map(str, paths[:3])) + (", …" if len(paths) > 3 else ""))
    return table


def read_frame(
    files: Path | Iterable[Path], spec: TableSpec, *, columns: Sequence[str] | None = None, validate: bool = True
) -> pl.DataFrame:
    """`read_table` as a Polars frame."""
    import polars as pl

    frame = pl.from_arrow(read_table(files, spec, columns=columns, validate=validate))
    assert isinstance(frame, pl.DataFrame)
    return frame


def read_rows(files: Path | Iterable[Path], spec: TableSpec) -> list[dict[str, Any]]:
    """`read_table` as row dictionaries: for small tables."""
    rows: list[dict[str, Any]] = read_table(files, spec).to_pylist()
    return rows


def preflight(path: Path, spec: TableSpec) -> pq.FileMetaData:
    """Open a file's footer and check the table's name and version, so that a bad file is named before any scan.

    Raises:
        ContractError: naming the file.
    """
    try:
        footer = pq.read_metadata(path)
    except FileNotFoundError:
        raise ContractError(spec.name, str(path), [Violation("the file exists", 1)]) from None
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        raise _unreadable(spec, path, error) from None
    metadata = footer.metadata or {}
    name, version = metadata.get(NAME_KEY), metadata.get(VERSION_KEY)
    if name is not None and name != spec.name.encode():
        rule = f"footer says table '{name.decode(errors='replace')}', expected '{spec.name}'"
        raise ContractError(spec.name, str(path), [Violation(rule, footer.num_rows)])
    if version is not None and version != str(spec.version).encode():
        rule = f"schema version {version.decode(errors='replace')} is known (this release reads {spec.version})"
        hint = "Another release wrote it: read it with that one, or make it anew with `mmgrpo run RECIPE`."
        raise ContractError(spec.name, str(path), [Violation(rule, footer.num_rows)], hint)
    return footer


def _unreadable(spec: TableSpec, path: Path, error: Exception) -> ContractError:
    rule = f"the file is readable Parquet ({str(error).splitlines()[0]})"
    hint = "The file is truncated or damaged: restore it, or delete its artifact folder and run again."
    return ContractError(spec.name, str(path), [Violation(rule, 1)], hint)


def _read_file(path: Path, spec: TableSpec, names: list[str]) -> pa.Table:
    footer = preflight(path, spec)
    present = set(footer.schema.to_arrow_schema().names)
    try:
        return pq.ParquetFile(path).read(columns=[name for name in names if name in present])
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        raise _unreadable(spec, path, error) from None


def as_arrow(rows: pa.Table | pl.DataFrame | Sequence[dict[str, Any]], spec: TableSpec, where: str) -> pa.Table:
    """Rows of any kind as an Arrow table of the spec's types, nulls allowed everywhere.

    Raises:
        ContractError: for unknown columns and values of other types.
    """
    if isinstance(rows, pa.Table):
        return rows
    if not isinstance(rows, Sequence):
        return rows.to_arrow()
    try:
        extra = sorted({name for row in rows for name in row} - set(spec.schema.names))
        if extra:
            violations = [Violation(f"column '{name}' is known", len(rows)) for name in extra]
            raise ContractError(spec.name, where, violations)
        return pa.Table.from_pylist(list(rows), schema=_relaxed(spec))
    except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError) as error:
        raise _other_types(error, len(rows), spec, where) from None


def arrow_of_values(rows: Sequence[Sequence[Any]], spec: TableSpec, where: str) -> pa.Table:
    """As `as_arrow`, of rows that hold a value of each column, in the spec's order: in half the time.

    Raises:
        ContractError: for values of other types.
    """
    columns = zip(*rows, strict=True) if rows else ((),) * len(spec.schema)
    try:
        arrays = [pa.array(values, of.type) for values, of in zip(columns, spec.schema, strict=True)]
    except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError) as error:
        raise _other_types(error, len(rows), spec, where) from None
    return pa.Table.from_arrays(arrays, schema=_relaxed(spec))


def _relaxed(spec: TableSpec) -> pa.Schema:
    """Nullability is checked by rule, with counts and keys; pyarrow would only say that it is wrong somewhere."""
    return pa.schema([field.with_nullable(True) for field in spec.schema])


def _other_types(error: Exception, rows: int, spec: TableSpec, where: str) -> ContractError:
    return ContractError(spec.name, where, [Violation(f"exact types ({error})", rows)])
