"""Chunks of whole examples in order of example_id, in bounded memory.

Small inputs are one chunk. Larger ones are walked side by side where both tables stand in the order in which the
rollout stage writes them; otherwise they are first sorted into ranges on disk (see `spool`). The result is the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

import polars as pl

from stages.grouping.load import Chunk, UnknownRolloutError, build
from stages.grouping.rules import Rules
from stages.grouping.spool import spool
from stages.grouping.tables import Tables, explain

Made = TypeVar("Made")
Make = Callable[[pl.DataFrame, pl.DataFrame], Made]
"""What becomes of rollouts and their calls, of whole examples."""


class UnorderedError(Exception):
    """The tables cannot be walked side by side."""


def whole(tables: Tables, rules: Rules, make: Make[Made]) -> Iterator[Made]:
    """Everything as one chunk."""
    yield make(read(tables.rollouts.frame(), tables, rules), read(tables.calls.frame(), tables, rules))


def side_by_side(tables: Tables, rules: Rules, rows: int, make: Make[Made]) -> Iterator[Made]:
    """Chunks of about `rows` invocations, while both tables keep one order of examples.

    Raises:
        UnorderedError: as soon as they do not. Chunks given so far are then not to be used.
    """
    if not tables.ordered:
        raise UnorderedError
    share = tables.rollouts.rows / max(1, tables.calls.rows)
    rollouts, calls = (read(table.frame(0, 0), tables, rules) for table in (tables.rollouts, tables.calls))
    at_rollout = at_call = 0
    while at_call < tables.calls.rows or at_rollout < tables.rollouts.rows:
        more = read(tables.calls.frame(at_call, rows), tables, rules)
        at_call += more.height
        calls = pl.concat([calls, more])
        last = at_call >= tables.calls.rows
        while at_rollout < tables.rollouts.rows and (last or not _reached(rollouts, calls)):
            want = tables.rollouts.rows - at_rollout if last else max(1024, round(more.height * share))
            found = read(tables.rollouts.frame(at_rollout, want), tables, rules)
            at_rollout += found.height
            rollouts = pl.concat([rollouts, found])
            if not last and rollouts.height > 2 * calls.height + rows:
                raise UnorderedError  # the last call's rollout is far away
        if not rollouts.get_column("example_id").is_sorted():
            raise UnorderedError
        cut, calls_cut = (rollouts.height, calls.height) if last else _whole_examples(rollouts, calls)
        if cut or last:
            yield make(rollouts[:cut], calls[:calls_cut])
            rollouts, calls = rollouts[cut:], calls[calls_cut:]


def _reached(rollouts: pl.DataFrame, calls: pl.DataFrame) -> bool:
    """Whether the last call's rollout has been read."""
    return bool((rollouts.get_column("rollout_id") == calls.get_column("rollout_id").last()).any())


def _whole_examples(rollouts: pl.DataFrame, calls: pl.DataFrame) -> tuple[int, int]:
    """How many rollouts and calls belong to examples that surely are complete: those before the last call's."""
    ids = rollouts.get_column("rollout_id")
    of_last = (ids == calls.get_column("rollout_id").last()).arg_max()
    if not _reached(rollouts, calls) or of_last is None:
        raise UnorderedError
    example = rollouts.get_column("example_id")[of_last]
    cut = int(rollouts.get_column("example_id").search_sorted(example, side="left"))
    open_calls = calls.get_column("rollout_id").is_in(ids[cut:].implode())
    first = open_calls.arg_max()
    assert first is not None
    if not open_calls[first:].all():
        raise UnorderedError
    return cut, first


def build_ordered(rollouts: pl.DataFrame, calls: pl.DataFrame, rules: Rules, where: str) -> Chunk:
    """A chunk of tables that are walked side by side.

    Raises:
        UnorderedError: when a call's rollout is in none of the chunk's rows.
    """
    try:
        return build(rollouts, calls, rules, where)
    except UnknownRolloutError:
        raise UnorderedError from None


def spooled(tables: Tables, rules: Rules, rows: int, folder: Path, make: Make[Made]) -> Iterator[Made]:
    """Chunks of about `rows` invocations of tables in any order, by way of files in `folder`."""
    for rollouts, calls in spool(tables, rows, folder, lambda frame: read(frame, tables, rules)):
        made = make(rollouts, calls)
        del rollouts, calls  # text, no longer needed while the chunk is worked on
        yield made


def read(frame: pl.LazyFrame, tables: Tables, rules: Rules) -> pl.DataFrame:
    """Collect a scan and check what can be checked row by row.

    Raises:
        DataError: naming the file and the rows.
    """
    try:
        found = frame.collect()
    except pl.exceptions.PolarsError as error:
        raise explain(tables, error, rules) from error
    if "sound" in found.columns:
        if not found.get_column("sound").all():
            raise explain(tables, None, rules)
        found = found.drop("sound")
    return found
