"""The stage's tables as Arrow: integers become text through dictionaries, so that no string is ever built per row."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl
import pyarrow as pa

from schemas.groups import COPY_KINDS
from stages.grouping.hashing import fold, fold_strings, start
from stages.grouping.job import Result
from stages.grouping.load import Chunk
from stages.grouping.reasons import REASONS
from stages.grouping.rewards import MICRO
from stages.grouping.runs import column_runs

ID_DIGITS = 20


def groups_table(result: Result) -> pa.Table:
    """Rows of groups.parquet, in the order of members: example, module, key, position, rollout."""
    rows, chunk = result.rows, result.chunk
    r, source = rows.get_column("r"), rows.get_column("row")
    runs = column_runs(rows.get_column("gid"))
    of = result.grouped.members.groups[rows.get_column("gid").gather(runs.starts)]
    if result.grouped.chunk is chunk:
        m, p = (
            np.repeat(part, runs.sizes)
            for part in (of.get_column("kind").to_numpy() // len(chunk.keys), of.get_column("p").to_numpy())
        )
    else:
        m, p = (result.calls.get_column(name).gather(source).to_numpy() for name in ("m", "p"))
    columns = {
        "group_id": _text(runs.of, group_ids(result, of)),
        "member_index": pa.array((np.arange(len(rows)) - runs.starts[runs.of]).astype(np.int32)),
        "example_id": _text(np.repeat(of.get_column("e").to_numpy(), runs.sizes), _examples(chunk)),
        "module": _text(m, pa.array(chunk.modules, pa.string())),
        "invocation_index": pa.array(p),
        "rollout_id": _text(r, _arrow(chunk.rollouts.get_column("rollout_id"))),
        "call_index": _array(result.calls.get_column("call_index").gather(source)),
        "attempt": _array(result.calls.get_column("attempt").gather(source)),
        "copy_kind": _text(rows.get_column("copy"), pa.array(COPY_KINDS)),
        "source": _by_rollout(chunk.rollouts.get_column("source"), r),
        "policy": _by_rollout(chunk.rollouts.get_column("policy"), r),
        "reward": _array(rows.get_column("q").cast(pl.Float64) / MICRO),
        "advantage": _array(rows.get_column("advantage")),
        "weight": _array(rows.get_column("weight")),
    }
    return pa.table(columns)


def excluded_table(result: Result) -> pa.Table:
    """Rows of excluded.parquet, by (rollout, call_index); rollouts without a call have a null call_index."""
    chunk = result.chunk
    out = result.calls.filter(pl.col("reason").is_not_null())
    out = out.select("r", "call_index", "m", "p", "attempt", pl.col("reason").to_physical().cast(pl.Int32))
    quiet = silent(result).select(reason=pl.lit(list(REASONS).index("no_calls"), dtype=pl.Int32), r="r")
    rows = pl.concat([out, quiet], how="diagonal").sort("r", "call_index")
    columns = {
        "rollout_id": _text(rows.get_column("r"), _arrow(chunk.rollouts.get_column("rollout_id"))),
        "call_index": _array(rows.get_column("call_index")),
        "module": _text(rows.get_column("m"), pa.array(chunk.modules, pa.string())),
        "invocation_index": _array(rows.get_column("p")),
        "attempt": _array(rows.get_column("attempt")),
        "reason": _text(rows.get_column("reason"), pa.array(list(REASONS))),
    }
    return pa.table(columns)


def silent(result: Result) -> pl.DataFrame:
    """The rollouts (`r`) that made no call."""
    called = np.zeros(result.chunk.rollouts.height, dtype=bool)
    called[result.calls.get_column("r").to_numpy()] = True
    return pl.DataFrame({"r": np.flatnonzero(~called).astype(np.uint32)})


def group_ids(result: Result, groups: pl.DataFrame) -> pa.Array:
    """80-bit ids, in hex: hashes of (example_id, module, key columns, invocation_index), one per row of `groups`."""
    chunk = result.grouped.chunk
    e, kind, p = (groups.get_column(name).to_numpy() for name in ("e", "kind", "p"))
    examples = pl.Series(_examples(result.chunk))
    modules, keys = pl.Series(chunk.modules, dtype=pl.String), np.array(chunk.keys, dtype=np.uint64)
    lanes = []
    for lane in (1, 2):
        of_example = fold_strings(start(lane, len(examples)), examples)
        of_module = fold_strings(start(lane, len(modules)), modules)
        lanes.append(fold(fold(fold(of_example[e], of_module[kind // len(keys)]), keys[kind % len(keys)]), p))
    return _hex(np.stack(lanes, axis=1))


def _hex(words: np.ndarray) -> pa.Array:
    """The first 20 hex digits of rows of two 64-bit words, as text."""
    raw = words.astype(">u8").view(np.uint8).reshape(len(words), 16)[:, : ID_DIGITS // 2]
    digits = np.frombuffer(b"0123456789abcdef", dtype=np.uint8)
    data = np.ascontiguousarray(np.stack([digits[raw >> 4], digits[raw & 15]], axis=2).reshape(len(words), ID_DIGITS))
    offsets = np.arange(0, ID_DIGITS * len(words) + 1, ID_DIGITS, dtype=np.int32)
    return pa.StringArray.from_buffers(len(words), pa.py_buffer(offsets), pa.py_buffer(data))


def _examples(chunk: Chunk) -> pa.Array:
    return _arrow(chunk.rollouts.get_column("example_id").rle().struct.field("value"))


def _arrow(series: pl.Series) -> pa.Array:
    return series.to_arrow().cast(pa.string())


def _array(series: pl.Series) -> pa.Array:
    return series.to_arrow()


def _text(codes: pl.Series | npt.NDArray[Any], values: pa.Array) -> pa.DictionaryArray:
    indices = pa.array(codes.astype(np.int32)) if isinstance(codes, np.ndarray) else codes.cast(pl.Int32).to_arrow()
    return pa.DictionaryArray.from_arrays(indices, values)


def _by_rollout(values: pl.Series, r: pl.Series) -> pa.DictionaryArray:
    """A text column of rollouts for each member, through the few distinct values that it has."""
    known = values.unique().sort()
    if known.len() == 1 and not known.null_count():
        return _text(np.zeros(r.len(), dtype=np.int32), _arrow(known))
    known = known.drop_nulls()
    codes = values.cast(pl.Enum(known)).to_physical().cast(pl.Int32)
    return _text(codes.gather(r), _arrow(known))
