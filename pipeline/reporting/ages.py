"""What training did with data of each age and with each module, by iteration."""

from __future__ import annotations

import polars as pl

from pipeline.reporting.data_training import AgeStats, ModuleStats
from pipeline.reporting.opened import OpenRun, frame
from schemas.table import TableSpec
from schemas.training import AGES, MODULES, RATIO_EDGES

MEANS = ("ess", "clip_share", "kl_k1", "kl_k3", "entropy")


def collect_ages(run: OpenRun) -> tuple[AgeStats, ...]:
    """Per iteration, adapter and age: sums over its steps, and means weighted by tokens."""
    rows = _rows(run, AGES)
    if rows.is_empty():
        return ()
    place, tokens = ["iteration", "adapter", "age"], pl.col("completion_tokens")
    sums = rows.group_by(place).agg(
        pl.col("members").sum(),
        tokens.sum(),
        *(_weighted(name).alias(name) for name in MEANS),
        *(_bins(name) for name in ("ratio_histogram", "rho_histogram")),
    )
    return tuple(AgeStats(**row) for row in sums.sort(place, nulls_last=True).to_dicts())


def collect_modules(run: OpenRun) -> tuple[ModuleStats, ...]:
    """Per iteration, adapter and module: sums over its steps, and the mean norm of its gradient."""
    rows = _rows(run, MODULES)
    if rows.is_empty():
        return ()
    place = ["iteration", "adapter", "module"]
    sums = rows.group_by(place).agg(
        pl.col("members").sum(), pl.col("completion_tokens").sum(), pl.col("grad_norm").mean()
    )
    return tuple(ModuleStats(**row) for row in sums.sort(place).to_dicts())


def _rows(run: OpenRun, spec: TableSpec) -> pl.DataFrame:
    """A table of every train artifact that has it, with its iteration."""
    parts = []
    for index in range(len(run.state.iterations)):
        artifact = run.stage(index, "train")
        if artifact is not None:
            parts.append(frame(artifact, spec, list(spec.schema.names)).with_columns(iteration=pl.lit(index)))
    return pl.concat(parts) if parts else pl.DataFrame()


def _weighted(name: str) -> pl.Expr:
    """Mean over tokens of the rows that have the figure; null without any."""
    tokens = pl.col("completion_tokens").filter(pl.col(name).is_not_null()).sum()
    total = (pl.col(name) * pl.col("completion_tokens")).sum()
    return pl.when(tokens > 0).then(total / tokens)


def _bins(name: str) -> pl.Expr:
    """Histograms added up; null where there is none."""
    count = pl.col(name).list.len().max()
    sums = [pl.col(name).list.get(index, null_on_oob=True).sum() for index in range(len(RATIO_EDGES) + 1)]
    return pl.when(count > 0).then(pl.concat_list(sums)).alias(name)
