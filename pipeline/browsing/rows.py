"""Rows of the invocations of a few rollouts out of very many.

A filter reads plain columns quickly, since it decodes only the rows that fit; list columns it would decode whole. Their
rows are found by their places, and only row groups that hold some are read.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.browsing.sources import scan
from pipeline.reporting.opened import table_files
from schemas.rollouts import INVOCATIONS
from stages.contract import Artifact

LISTS = ("completion_ids", "sampling_logprobs")
_BATCH = 1 << 14
_PLACE = "place"


def call_rows(artifact: Artifact, ids: Sequence[str], columns: Sequence[str]) -> list[dict[str, Any]]:
    """The calls of some rollouts by (rollout_id, call_index): some plain columns, and those of `LISTS`.

    Raises:
        ContractError: naming the file, when a table cannot be read.
    """
    table = scan(artifact, INVOCATIONS).with_row_index(_PLACE).select(_PLACE, *columns)
    rows = table.filter(pl.col("rollout_id").is_in(list(ids))).sort("rollout_id", "call_index").collect()
    lists = dict(_lists(artifact, rows[_PLACE].to_list()))
    return [row | lists[row.pop(_PLACE)] for row in rows.iter_rows(named=True)]


def _lists(artifact: Artifact, places: Sequence[int]) -> Iterator[tuple[int, dict[str, Any]]]:
    """The list columns of the rows at some places, counted over all files of the table."""
    wanted, start = pl.Series(sorted(places), dtype=pl.Int64), 0
    for path in table_files(artifact, INVOCATIONS):
        file = pq.ParquetFile(path)
        for group in range(file.metadata.num_row_groups):
            end = start + file.metadata.row_group(group).num_rows
            here = wanted.filter(wanted.is_between(start, end, closed="left"))
            if len(here):
                yield from _of_group(file, group, start, here)
            start = end


def _of_group(file: pq.ParquetFile, group: int, start: int, here: pl.Series) -> Iterator[tuple[int, dict[str, Any]]]:
    for batch in file.iter_batches(_BATCH, row_groups=[group], columns=list(LISTS)):
        places = here.filter(here.is_between(start, start + batch.num_rows, closed="left")).to_list()
        if places:
            taken = batch.take(pa.array([place - start for place in places]))
            yield from zip(places, taken.to_pylist(), strict=True)
        start += batch.num_rows
        if start > here[-1]:
            return
