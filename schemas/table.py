"""What a table is: a named, versioned Arrow schema with a key and rules."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa

if TYPE_CHECKING:
    from collections.abc import Callable

    import polars as pl

NAME_KEY = b"mmgrpo.table"
VERSION_KEY = b"mmgrpo.version"
"""In the footer of a table's files."""
REWARD_BOUND = 1e6
"""Largest magnitude of a reward or score. Rewards are quantised to 1e-6, so this keeps them in 2^40."""


@dataclass(frozen=True)
class Rule:
    """A rule that every row keeps. `broken` builds a boolean Polars expression, true where it is not kept."""

    name: str
    broken: Callable[[], pl.Expr]
    columns: tuple[str, ...]


@dataclass(frozen=True)
class TableSpec:
    """Name, schema version, explicit Arrow schema, key columns, and rules of one table.

    A field with `nullable=False` may not hold nulls; null elsewhere means absent.
    """

    name: str
    version: int
    schema: pa.Schema
    key: tuple[str, ...]
    rules: tuple[Rule, ...] = ()


def column(name: str, type_: pa.DataType, *, null: bool = False) -> pa.Field:
    """A schema field; not nullable unless said so."""
    return pa.field(name, type_, nullable=null)


def one_of(name: str, values: tuple[str, ...]) -> Rule:
    """The column, where not null, is one of `values`."""

    def broken() -> pl.Expr:
        import polars as pl

        return ~pl.col(name).is_in(list(values))

    return Rule(f"{name} is one of {', '.join(values)}", broken, (name,))


def bounded(name: str, low: float = -REWARD_BOUND, high: float = REWARD_BOUND) -> Rule:
    """The column, where not null, is finite and within [low, high]."""

    def broken() -> pl.Expr:
        import polars as pl

        return ~(pl.col(name).is_finite() & pl.col(name).is_between(low, high))

    return Rule(f"{name} is finite and within [{low:g}, {high:g}]", broken, (name,))


def not_negative(name: str) -> Rule:
    """The column, where not null, is at least 0."""

    def broken() -> pl.Expr:
        import polars as pl

        return pl.col(name) < 0

    return Rule(f"{name} is at least 0", broken, (name,))


def finite_lists(name: str) -> Rule:
    """Every element of the list column is present and finite."""

    def broken() -> pl.Expr:
        import polars as pl

        return ~pl.col(name).list.eval(pl.element().is_finite().fill_null(False)).list.all()

    return Rule(f"{name} holds finite numbers only", broken, (name,))


def same_length(left: str, right: str) -> Rule:
    """Two list columns have equal lengths wherever both are present."""

    def broken() -> pl.Expr:
        import polars as pl

        return pl.col(left).list.len() != pl.col(right).list.len()

    return Rule(f"{left} and {right} have equal lengths", broken, (left, right))
