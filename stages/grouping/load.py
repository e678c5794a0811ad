"""From Parquet files to a chunk: the columns that grouping needs, strings replaced by integers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import polars as pl

from schemas.errors import ContractError, Violation
from schemas.parquet import read_frame
from schemas.rollouts import INVOCATIONS, ROLLOUTS

ROLLOUT_COLUMNS = (
    "example_id", "rollout_index", "rollout_id", "source", "policy", "reward", "reward_parts", "status",
)  # fmt: skip
CALL_COLUMNS = (
    "rollout_id", "call_index", "module", "invocation_index", "attempt", "lm", "finish_reason", "parse_status",
    "parsed_share", "trainable", "concurrent",
)  # fmt: skip


@dataclass(frozen=True)
class Chunk:
    """Whole examples, ready for grouping.

    Attributes:
        rollouts: sorted by (example_id, rollout_index, rollout_id), with `example`, a dense number of example_id.
        calls: one row per LM call, sorted by (r, call_index); `r` is the row of its rollout, `m` its module's rank.
        modules: module names, sorted; `m` counts into them.
    """

    rollouts: pl.DataFrame
    calls: pl.DataFrame
    modules: tuple[str, ...]


def load_rollouts(files: Sequence[Path]) -> pl.DataFrame:
    """The rollouts of all files, in their total order, with the dense number `example`."""
    frame = read_frame(files, ROLLOUTS, columns=ROLLOUT_COLUMNS)
    frame = frame.sort("example_id", "rollout_index", "rollout_id")
    return frame.with_columns(example=pl.col("example_id").rle_id())


def load_chunk(rollout_files: Sequence[Path], call_files: Sequence[Path]) -> Chunk:
    """Read everything as one chunk."""
    rollouts = load_rollouts(rollout_files)
    calls = read_frame(call_files, INVOCATIONS, columns=CALL_COLUMNS, validate=False)
    missing = pl.concat(
        [pl.scan_parquet(file).select(no_ids=pl.col("completion_ids").is_null()) for file in call_files]
    ).collect()
    calls = calls.hstack(missing)
    modules = tuple(calls.get_column("module").unique().sort().to_list())
    keys = rollouts.select("rollout_id", r=pl.int_range(pl.len(), dtype=pl.UInt32))
    calls = calls.join(keys, on="rollout_id", how="left")
    orphans = calls.filter(pl.col("r").is_null())
    if orphans.height:
        samples = tuple(f"rollout_id={value}" for value in orphans.get_column("rollout_id").head(3).to_list())
        rule = Violation("rollout_id is in the rollouts table", orphans.height, samples)
        raise ContractError("invocations", str(call_files[0]), [rule])
    narrow = calls.select(
        "r",
        pl.col("module").cast(pl.Enum(list(modules))).to_physical().cast(pl.UInt32).alias("m"),
        pl.col("invocation_index").alias("p"),
        "attempt",
        "call_index",
        failed=pl.col("parse_status") == "failed",
        share=pl.col("parsed_share").fill_null(0.0),
        cut=pl.col("finish_reason").eq_missing("length"),
        overflow=pl.col("finish_reason").eq_missing("context_overflow"),
        no_ids=pl.col("no_ids"),
        trainable=pl.col("trainable") & (pl.col("lm") == "student"),
        concurrent=pl.col("concurrent"),
    )
    return Chunk(rollouts, narrow.sort("r", "call_index"), modules)
