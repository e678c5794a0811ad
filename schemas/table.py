"""What a table is: a named, versioned Arrow schema with a key and rules."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
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
    """A rule that every row keeps. `broken` builds a boolean Polars expression, true where it is not kept.

    It is a function of a module, or a `partial` of one, so that a table can be sent to other processes.
    """

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
    return Rule(f"{name} is one of {', '.join(values)}", partial(_none_of, name, values), (name,))


def _none_of(name: str, values: tuple[str, ...]) -> pl.Expr:
    import polars as pl

    return ~pl.col(name).is_in(list(values))


def bounded(name: str, low: float = -REWARD_BOUND, high: float = REWARD_BOUND) -> Rule:
    """The column, where not null, is finite and within [low, high]."""
    return Rule(f"{name} is finite and within [{low:g}, {high:g}]", partial(_outside, name, low, high), (name,))


def _outside(name: str, low: float, high: float) -> pl.Expr:
    import polars as pl

    return ~(pl.col(name).is_finite() & pl.col(name).is_between(low, high))


def not_negative(name: str) -> Rule:
    """The column, where not null, is at least 0."""
    return Rule(f"{name} is at least 0", partial(_negative, name), (name,))


def _negative(name: str) -> pl.Expr:
    import polars as pl

    return pl.col(name) < 0


def finite_lists(name: str) -> Rule:
    """Every element of the list column is present and finite."""
    return Rule(f"{name} holds finite numbers only", partial(_not_finite, name), (name,))


def _not_finite(name: str) -> pl.Expr:
    import polars as pl

    return ~pl.col(name).list.eval(pl.element().is_finite().fill_null(False)).list.all()


def same_length(left: str, right: str) -> Rule:
    """Two list columns have equal lengths wherever both are present."""
    return Rule(f"{left} and {right} have equal lengths", partial(_other_length, left, right), (left, right))


def _other_length(left: str, right: str) -> pl.Expr:
    import polars as pl

    return pl.col(left).list.len() != pl.col(right).list.len()
