"""Chunks that other processes work on: what each is sent, and what it hands back."""

from __future__ import annotations

import io
from collections.abc import Mapping
from dataclasses import dataclass

import polars as pl
import pyarrow as pa

from stages.grouping.advantage import ModuleMoments
from stages.grouping.job import finish, select_members, sums_by_module
from stages.grouping.load import Chunk, build
from stages.grouping.output import excluded_table, groups_table
from stages.grouping.ranges import UnorderedError, build_ordered
from stages.grouping.rules import Rules
from stages.grouping.totals import Totals


@dataclass(frozen=True)
class Piece:
    """The rows of a chunk on their way."""

    rollouts: bytes
    calls: bytes
    ordered: bool
    """Whether the tables are walked side by side, on trust that their order allows it."""


def pack(rollouts: pl.DataFrame, calls: pl.DataFrame, *, ordered: bool) -> Piece:
    """Rows as bytes: of a slice, nothing but the slice."""
    return Piece(_packed(rollouts), _packed(calls), ordered)


def _packed(frame: pl.DataFrame) -> bytes:
    buffer = io.BytesIO()
    frame.write_parquet(buffer, compression="lz4", statistics=False)
    return buffer.getvalue()


@dataclass(frozen=True)
class Way:
    """What all chunks have in common."""

    ages: pl.DataFrame
    rules: Rules
    where: str


def _chunk(way: Way, piece: Piece) -> Chunk:
    make = build_ordered if piece.ordered else build
    rollouts, calls = (pl.read_parquet(io.BytesIO(data)) for data in (piece.rollouts, piece.calls))
    return make(rollouts, calls, way.rules, way.where)


def moments(way: Way, piece: Piece) -> Mapping[str, ModuleMoments] | None:
    """What a chunk adds to the deviation of each module; None where the tables cannot be walked side by side."""
    try:
        return sums_by_module(select_members(_chunk(way, piece), way.ages, way.rules))
    except UnorderedError:
        return None


@dataclass(frozen=True)
class Grouped:
    """What a chunk comes to: rows of both tables, and figures."""

    groups: pa.Table
    excluded: pa.Table
    totals: Totals


def grouped(way: Way, modules: dict[str, ModuleMoments], piece: Piece) -> Grouped | None:
    """Group a chunk; None where the tables cannot be walked side by side."""
    try:
        chunk = _chunk(way, piece)
    except UnorderedError:
        return None
    result = finish(chunk, select_members(chunk, way.ages, way.rules), modules, way.rules)
    left, totals = excluded_table(result), Totals()
    totals.add(result, left.num_rows)
    return Grouped(groups_table(result), left, totals)
