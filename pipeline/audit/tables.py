"""How two tables of one kind differ, in words that name rows."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import polars as pl

from schemas.manifest import TELEMETRY
from schemas.parquet import read_frame
from schemas.table import TableSpec
from stages.contract import Artifact


def rows_differ(recorded: pl.DataFrame, again: pl.DataFrame, key: Sequence[str]) -> list[str]:
    """What differs between a table as recorded and as it comes out now; empty where they are the same.

    Args:
        recorded: the table on disk.
        again: the table made anew, with the same columns.
        key: what names a row.
    """
    if recorded.equals(again):
        return []
    found = []
    for frame, other, words in ((recorded, again, "should not be there"), (again, recorded, "missing")):
        alone = frame.join(other, on=key, how="anti", nulls_equal=True)
        if alone.height:
            found.append(f"{_count(alone.height, 'row')} {words}, for example {_named(alone.row(0, named=True), key)}")
    both = recorded.join(again, on=key, how="inner", nulls_equal=True, suffix=" again", maintain_order="left")
    for name in recorded.columns:
        if name in key:
            continue
        wrong = both.filter(pl.col(name).ne_missing(pl.col(f"{name} again")))
        if wrong.height:
            row = wrong.row(0, named=True)
            found.append(
                f"{name} differs in {_count(wrong.height, 'row')}, for example {_named(row, key)}: "
                f"{row[name]}, made again {row[f'{name} again']}"
            )
    return found or ["the same rows in another order"]


def _named(row: dict[str, Any], key: Sequence[str]) -> str:
    return ", ".join(f"{name}={row[name]}" for name in key)


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def files_differ(recorded: Artifact, again: Artifact, specs: Sequence[TableSpec]) -> tuple[list[str], bool]:
    """What differs between an artifact and the same made again, file by file, telemetry left out.

    Returns:
        Problems that name the file, and whether the bytes are the same too: other releases of the Parquet library may
        write the same rows in other bytes.
    """
    mine, theirs = recorded.manifest.files, again.manifest.files
    by_name = {f"{spec.name}.parquet": spec for spec in specs}
    problems: list[str] = []
    for name in sorted(mine.keys() | theirs.keys()):
        if name.startswith(TELEMETRY):
            continue
        if name not in mine or name not in theirs:
            said = "the stage does not make it" if name in mine else "missing: the stage makes it"
            problems.append(f"{recorded.file(name)}: {said}")
        elif mine[name].sha256 != theirs[name].sha256:
            problems += [f"{recorded.file(name)}: {line}" for line in _file_differs(recorded, again, name, by_name)]
    return problems, recorded.digest == again.digest


def _file_differs(recorded: Artifact, again: Artifact, name: str, specs: dict[str, TableSpec]) -> list[str]:
    if (spec := specs.get(name)) is None:
        return ["made again it has other bytes"]
    frames = [read_frame(item.file(name), spec, validate=False) for item in (recorded, again)]
    return rows_differ(frames[0], frames[1], spec.key)


def values_differ(recorded: dict[str, Any], again: dict[str, Any]) -> list[str]:
    """Named values that are not what they come out as now. Numbers may differ by rounding."""
    return [
        f"{name} is {recorded.get(name)}, made again {value}"
        for name, value in again.items()
        if not _same(recorded.get(name), value)
    ]


def _same(left: Any, right: Any) -> bool:
    if isinstance(left, dict) and isinstance(right, dict):
        return left.keys() == right.keys() and all(_same(left[name], right[name]) for name in left)
    numbers = [isinstance(value, (int, float)) and not isinstance(value, bool) for value in (left, right)]
    if all(numbers):
        return bool(abs(left - right) <= 1e-9 * max(1.0, abs(left), abs(right)))
    return bool(left == right)


def read(path: Path, spec: TableSpec, columns: Sequence[str] | None = None) -> pl.DataFrame:
    """A table whose bytes have been compared with its digest already."""
    return read_frame(path, spec, columns=columns, validate=False)
