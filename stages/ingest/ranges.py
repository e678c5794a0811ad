"""Records cut into ranges of example_id, each sorted and made into tables for itself.

The cut is decided by the number of spans alone, and what a range becomes by the records in it: neither depends on who
brought them, nor in what order.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from operator import itemgetter
from pathlib import Path
from typing import Any

import orjson
import pyarrow as pa

from schemas.examples import EXAMPLES
from schemas.parquet import arrow_of_values
from schemas.rollouts import INVOCATIONS, ROLLOUTS
from schemas.table import TableSpec
from schemas.traces import LEFT_OUT, TRACES
from stages.ingest.chunks import Chunks, chunks_in
from stages.ingest.inputs import split_of
from stages.ingest.records import Record
from stages.ingest.rescore import Rescorer
from stages.ingest.stored import canonical_bytes

RANGE = 100_000
"""Spans of a range of examples, about."""
TABLES = (EXAMPLES, ROLLOUTS, INVOCATIONS, TRACES, LEFT_OUT)
_AT_ONCE = 1024
"""Records that are held as rows while they become tables."""
Rows = dict[str, list[list[Any]]]
"""Of each table, the values of its columns: a third less to write and read than with their names in every row."""
_VALUES = {spec.name: itemgetter(*spec.schema.names) for spec in TABLES}
_EXAMPLE, _NUMBER, _REASON = (
    spec.schema.get_field_index(name)
    for spec, name in ((ROLLOUTS, "example_id"), (ROLLOUTS, "rollout_index"), (TRACES, "reward_reason"))
)


def ranges_for(spans: int) -> int:
    """How many ranges a snapshot of so many spans is cut into."""
    return max(1, min(256, -(-spans // RANGE)))


class Ranges:
    """Records on their way, in a folder of their own.

    Args:
        folder: made here.
        count: of ranges.
    """

    def __init__(self, folder: Path, count: int) -> None:
        self._chunks, self._count = Chunks(folder, count), count

    def add(self, record: Record) -> None:
        """Take in what came of a trace."""
        trace = record.trace
        identity = trace["example_id"]
        place = 0 if identity is None else int(identity[:4], 16) * self._count >> 16
        rollouts = [] if record.rollout is None else [record.rollout]
        rows = [_values(TRACES, [trace]), _values(ROLLOUTS, rollouts)]
        rows += [_values(INVOCATIONS, record.invocations), _values(LEFT_OUT, record.left_out)]
        head = (identity or "", trace["start"] or 0, trace["trace"])
        self._chunks.add(place, head, orjson.dumps([record.inputs, *rows]))

    def flush(self) -> None:
        """Write what waits in memory."""
        self._chunks.flush()

    def done(self, task: str, told: Any) -> None:
        """Note that all records of a task are there; see `Chunks.done`."""
        self._chunks.done(task, told)


@dataclass
class Made:
    """The tables of one range."""

    tables: Mapping[str, pa.Table]
    siblings: Counter[int] = field(default_factory=Counter)
    """Examples by the number of their rollouts."""
    rewards: Counter[str] = field(default_factory=Counter)
    """Why rollouts have no reward."""


def made_of(folders: Iterable[Path], place: int, dev: float, rescorer: Rescorer | None = None) -> Made:
    """The tables of one range, whose records lie in several folders. The rollouts of an example are numbered by start.

    Args:
        folders: of `Ranges` of one count.
        place: which range.
        dev: share of the examples that become the dev split.
        rescorer: scores all of the range's rollouts at once, where it is given.
    """
    held = sorted(chunks_in(folders, place))
    counts: dict[str, int] = {}
    made = Made({})
    pieces: dict[str, list[pa.Table]] = {spec.name: [] for spec in TABLES}
    held.reverse()
    lines = (held.pop()[3] for _ in range(len(held)))
    while some := list(islice(lines, _AT_ONCE if rescorer is None else None)):
        rows = _rows(map(orjson.loads, some), dev, counts)
        if rescorer is not None:
            rows = _scored(rows, rescorer)
        made.rewards.update(row[_REASON] for row in rows["traces"] if row[_REASON])
        for spec in TABLES:
            pieces[spec.name].append(arrow_of_values(rows[spec.name], spec, spec.name))
    made.siblings.update(counts.values())
    made.tables = {name: pa.concat_tables(found) for name, found in pieces.items() if found}
    return made


def _values(spec: TableSpec, rows: Sequence[dict[str, Any]]) -> list[tuple[Any, ...]]:
    assert all(len(row) == len(spec.schema) for row in rows), spec.name
    return [_VALUES[spec.name](row) for row in rows]


def _rows(records: Iterable[Sequence[Any]], dev: float, counts: dict[str, int]) -> Rows:
    """Rows by table. `counts`: the rollouts of each example so far, counted on."""
    rows: Rows = {spec.name: [] for spec in TABLES}
    for inputs, traces, rollouts, invocations, left_out in records:
        rows["traces"] += traces
        rows["left_out"] += left_out
        rows["invocations"] += invocations
        rows["rollouts"] += rollouts
        for rollout in rollouts:
            identity = rollout[_EXAMPLE]
            rollout[_NUMBER] = before = counts.get(identity, 0)
            counts[identity] = before + 1
            if not before:
                rows["examples"] += [list(row) for row in _values(EXAMPLES, [_example(identity, inputs, dev)])]
    return rows


def _scored(rows: Rows, rescorer: Rescorer) -> Rows:
    """The same rows with the rescorer's scores."""
    named = {spec.name: [dict(zip(spec.schema.names, row, strict=True)) for row in rows[spec.name]] for spec in TABLES}
    rescorer.score(named)
    return {name: [list(row.values()) for row in found] for name, found in named.items()}


def _example(identity: str, inputs: dict[str, Any], dev: float) -> dict[str, Any]:
    told = canonical_bytes(inputs).decode()
    return {"example_id": identity, "split": split_of(identity, dev), "inputs": told, "labels": None, "metadata": None}
