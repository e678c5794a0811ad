"""The student's calls of an evaluation, and those of them whose completions are scored."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import polars as pl

from schemas.canonical import digest
from schemas.parquet import read_frame
from schemas.rollouts import INVOCATIONS
from schemas.scores import SCORES
from stages.contract import Artifact
from stages.training.members import Row

_COLUMNS = (
    "rollout_id",
    "call_index",
    "module",
    "invocation_index",
    "attempt",
    "lm",
    "completion",
    "prompt_ids",
    "completion_ids",
    "finish_reason",
    "parse_status",
    "temperature",
)


def student_calls(scores: Artifact) -> pl.DataFrame:
    """The calls of an evaluate artifact that the policy answered or was asked for, with example_id and sample.

    Sorted by (example_id, sample, call_index).

    Raises:
        ContractError: naming the file, when one cannot be read.
    """
    runs = read_frame(scores.file("scores.parquet"), SCORES, columns=["rollout_id", "example_id", "sample"])
    calls = read_frame(scores.file("invocations.parquet"), INVOCATIONS, columns=_COLUMNS, validate=False)
    own = calls.filter(pl.col("lm") == "student")
    return own.join(runs, on="rollout_id", how="inner").sort("example_id", "sample", "call_index")


def with_tokens(calls: pl.DataFrame) -> pl.DataFrame:
    """The calls whose prompt and completion are there as tokens, so that they can be scored."""
    lengths = (pl.col(name).list.len().fill_null(0) for name in ("prompt_ids", "completion_ids"))
    return calls.filter(pl.all_horizontal(length > 0 for length in lengths))


def chosen(calls: pl.DataFrame, most: int) -> pl.DataFrame:
    """At most so many of the calls, in their order: those whose places have the lowest hashes.

    A place is (example, sample, module, index, attempt), which says nothing of the policy: another one's calls are
    chosen at the same places.
    """
    place = ("example_id", "sample", "module", "invocation_index", "attempt")
    hashes = [digest(list(row)) for row in calls.select(place).iter_rows()]
    lowest = calls.with_row_index("row").with_columns(hash=pl.Series(hashes, dtype=pl.String)).sort("hash", "row")
    return lowest.head(most).sort("row").drop("row", "hash")


def scored_rows(calls: pl.DataFrame) -> Iterator[tuple[str, Row]]:
    """Module and tokens of each call."""
    for call in calls.iter_rows(named=True):
        yield call["module"], row_of(call["rollout_id"], call["call_index"], call)


def row_of(name: str, index: int, call: dict[str, Any]) -> Row:
    """A call as it is scored; a greedy one at temperature 1."""
    prompt, completion = (np.array(call[column], np.int64) for column in ("prompt_ids", "completion_ids"))
    return Row(name, index, prompt, completion, None, call["temperature"] or 1.0)
