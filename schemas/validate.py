"""The checks that every table passes: columns and types, nulls, keys, and the table's own rules."""

from __future__ import annotations

from collections.abc import Sequence

import polars as pl
import pyarrow as pa
import pyarrow.compute as pc

from schemas.errors import ContractError, Violation
from schemas.table import TableSpec

SAMPLES = 3


def check_columns(table: pa.Table, spec: TableSpec, where: str, names: Sequence[str] | None = None) -> pa.Table:
    """The table with exactly the columns `names` (default: all of the spec), in order, with exact types.

    A type that differs only in width or encoding (int64 for int32, large_string, dictionary) is cast when every
    value survives. Extra columns are dropped when a subset was asked for, and refused otherwise.

    Raises:
        ContractError: for missing or unknown columns and for values that the exact type cannot hold.
    """
    wanted = list(spec.schema.names) if names is None else list(names)
    violations = [
        Violation(f"column '{name}' is present", table.num_rows) for name in wanted if name not in table.schema.names
    ]
    if names is None:
        unknown = [name for name in table.schema.names if name not in spec.schema.names]
        violations += [Violation(f"column '{name}' is known", table.num_rows) for name in unknown]
    columns: list[pa.ChunkedArray] = []
    for name in wanted:
        if name not in table.schema.names:
            continue
        column, problem = _cast(table.column(name), spec.schema.field(name).type)
        if problem:
            violations.append(
                Violation(f"column '{name}' has type {spec.schema.field(name).type} ({problem})", table.num_rows)
            )
        columns.append(column)
    if violations:
        raise ContractError(spec.name, where, violations)
    return pa.table(columns, schema=pa.schema([spec.schema.field(name).with_nullable(True) for name in wanted]))


def check_rows(table: pa.Table, spec: TableSpec, where: str) -> None:
    """Check nulls, key uniqueness and the spec's rules, as far as the columns at hand allow.

    Raises:
        ContractError: with every failing rule, its count and three sample keys.
    """
    if table.num_rows == 0:
        return
    present = set(table.schema.names)
    needed = {name for rule in spec.rules for name in rule.columns} | set(spec.key)
    frame = pl.from_arrow(table.select([name for name in table.schema.names if name in needed]))
    assert isinstance(frame, pl.DataFrame)
    violations: list[Violation] = []
    for name in table.schema.names:
        nulls = table.column(name).null_count
        if nulls and not spec.schema.field(name).nullable:
            mask = pl.Series(pc.is_null(table.column(name)).to_numpy(zero_copy_only=False))
            violations.append(Violation(f"{name} is not null", nulls, _keys(frame, spec, mask)))
    if set(spec.key) <= present:
        repeated = frame.select(pl.struct(spec.key).is_duplicated()).to_series()
        if repeated.any():
            violations.append(
                Violation(f"({', '.join(spec.key)}) is unique", int(repeated.sum()), _keys(frame, spec, repeated))
            )
    for rule in spec.rules:
        if set(rule.columns) <= present:
            broken = frame.select(rule.broken().fill_null(False)).to_series()
            if broken.any():
                violations.append(Violation(rule.name, int(broken.sum()), _keys(frame, spec, broken)))
    if violations:
        raise ContractError(spec.name, where, violations)


def _cast(column: pa.ChunkedArray, wanted: pa.DataType) -> tuple[pa.ChunkedArray, str | None]:
    if column.type == wanted:
        return column, None
    if not same_kind(column.type, wanted):
        return column, f"got {column.type}"
    try:
        return column.cast(wanted, safe=True), None
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        return column, f"got {column.type}: {error}"


def same_kind(got: pa.DataType, wanted: pa.DataType) -> bool:
    """Whether a cast changes only the width or the encoding, never the meaning."""
    types = pa.types
    if types.is_null(got):
        return True
    if types.is_dictionary(got):
        return same_kind(got.value_type, wanted)
    if types.is_list(wanted):
        is_list = types.is_list(got) or types.is_large_list(got) or types.is_fixed_size_list(got)
        return is_list and same_kind(got.value_type, wanted.value_type)
    texts = (types.is_string, types.is_large_string, types.is_string_view)
    for kinds in (texts, (types.is_integer,), (types.is_floating,), (types.is_boolean,)):
        if any(kind(wanted) for kind in kinds):
            return any(kind(got) for kind in kinds)
    return False


def _keys(frame: pl.DataFrame, spec: TableSpec, mask: pl.Series) -> tuple[str, ...]:
    columns = [name for name in spec.key if name in frame.columns]
    if not columns:
        rows = mask.arg_true().head(SAMPLES).to_list()
        return tuple(f"row {row}" for row in rows)
    return tuple(
        ", ".join(f"{name}={value}" for name, value in row.items())
        for row in frame.filter(mask).select(columns).head(SAMPLES).iter_rows(named=True)
    )
