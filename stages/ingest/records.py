"""A trace's rows over the tables of a snapshot: as one record, read in the memory of one."""

from __future__ import annotations

import json
from array import array
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow.parquet as pq

from schemas.canonical import digest
from schemas.errors import DataError
from schemas.examples import EXAMPLES
from schemas.parquet import preflight
from schemas.rollouts import INVOCATIONS, ROLLOUTS
from schemas.table import TableSpec
from schemas.traces import LEFT_OUT, TRACES

Row = dict[str, Any]
_BATCH = 1024
_FLOATS = frozenset({"reward", "temperature", "top_p"})
_SCORED = ("reward", "reward_parts")


class Record(NamedTuple):
    """What a snapshot holds of one trace."""

    inputs: Row | None
    """Of the program; None where it is no rollout."""
    trace: Row
    rollout: Row | None
    invocations: list[Row]
    left_out: list[Row]

    @property
    def id(self) -> str:
        """Of the trace."""
        return str(self.trace["trace"])


def records_of(folder: Path) -> Iterator[Record]:
    """The records of a snapshot, in its order. Its tables hold them in the same one.

    Raises:
        DataError: when a table is damaged or in another order.
    """
    examples = _Runs(folder, EXAMPLES, "example_id")
    rollouts, invocations = _Runs(folder, ROLLOUTS, "rollout_id"), _Runs(folder, INVOCATIONS, "rollout_id")
    left_out = _Runs(folder, LEFT_OUT, "trace")
    example: Row | None = None
    for trace in _rows(folder, TRACES):
        gone, name = left_out.take(trace["trace"]), trace["rollout_id"]
        if name is None:
            yield Record(None, trace, None, [], gone)
            continue
        if example is None or example["example_id"] != trace["example_id"]:
            example = _only(examples.take(trace["example_id"]), folder, EXAMPLES, trace["example_id"])
        rollout = _only(rollouts.take(name), folder, ROLLOUTS, name)
        yield Record(json.loads(example["inputs"]), trace, rollout, invocations.take(name), gone)


def fingerprint(record: Record, *, scored: bool) -> str:
    """Equal for equal records, whether they were just made or read back.

    Args:
        record: of one trace.
        scored: whether its scores count; not where the program's metric makes them.
    """
    left = ("rollout_index", *(() if scored else _SCORED))
    rollout = None if record.rollout is None else {name: v for name, v in record.rollout.items() if name not in left}
    trace = {name: v for name, v in record.trace.items() if scored or name != "reward_reason"}
    calls = [{**row, "sampling_logprobs": _single(row["sampling_logprobs"])} for row in record.invocations]
    for row in (*calls, *([rollout] if rollout else [])):
        row.update({name: float(row[name]) for name in _FLOATS & row.keys() if row[name] is not None})
    return digest([record.inputs, trace, rollout, calls, record.left_out])


def _single(values: list[float] | None) -> list[float] | None:
    """Numbers in single precision, as the table holds them."""
    return None if values is None else array("f", values).tolist()


def _rows(folder: Path, spec: TableSpec) -> Iterator[Row]:
    path = folder / f"{spec.name}.parquet"
    preflight(path, spec)
    for batch in pq.ParquetFile(path).iter_batches(batch_size=_BATCH):
        yield from batch.to_pylist()


class _Runs:
    """Rows of a table that stand together under one value of a column."""

    def __init__(self, folder: Path, spec: TableSpec, column: str) -> None:
        self._rows, self._column = _rows(folder, spec), column
        self._next = next(self._rows, None)

    def take(self, value: str) -> list[Row]:
        """The rows of a value, if they come next."""
        found = []
        while self._next is not None and self._next[self._column] == value:
            found.append(self._next)
            self._next = next(self._rows, None)
        return found


def _only(rows: list[Row], folder: Path, spec: TableSpec, name: str) -> Row:
    if len(rows) != 1:
        raise DataError(f"{folder / spec.name}.parquet: {len(rows)} rows of {name} where one is expected: ingest again")
    return rows[0]
