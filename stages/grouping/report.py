"""What the manifest and the report show of a group stage: metrics and the summary table."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import polars as pl

from schemas.canonical import canonical_json
from stages.grouping.rewards import MICRO
from stages.grouping.tally import FINE

if TYPE_CHECKING:
    from stages.grouping.totals import Totals


def summary_rows(figures: pl.DataFrame, excluded: pl.DataFrame) -> list[dict[str, Any]]:
    """Rows of summary.parquet, by module and position."""
    why: dict[tuple[str, int], dict[str, int]] = {}
    for module, position, reason, rows in excluded.iter_rows():
        why.setdefault((module, position), {})[reason] = rows
    return [
        {
            "module": row["module"],
            "invocation_index": row["p"],
            **{name: row[name] for name in COUNTS},
            "reward_mean": _ratio(row["reward_sum"], row["rewards"], MICRO),
            "reward_min": _ratio(row["reward_min"], 1, MICRO),
            "reward_max": _ratio(row["reward_max"], 1, MICRO),
            "spread_mean": _ratio(row["range_sum"], row["formed"], MICRO),
            "not_selected_share": _ratio(row["not_selected"], row["candidates"], 1),
            "advantage_before": _ratio(row["before_sum"], row["candidates"], FINE),
            "advantage_after": _ratio(row["after_sum"], row["selected"], FINE),
            "weighted_advantage": _ratio(row["weighted_sum"], 1, FINE) or 0.0,
            "excluded": canonical_json(why.get((row["module"], row["p"]), {})),
        }
        for row in figures.sort("module", "p").iter_rows(named=True)
    ]


COUNTS = (
    "invocations", "groups", "flat_groups", "small_groups", "size_min", "size_max", "members", "copies_fill",
    "copies_select", "attempts",
)  # fmt: skip
"""Figures that the summary shows as they are."""


def _ratio(total: int | None, count: int, unit: int) -> float | None:
    """Total / count / unit, null where nothing was counted."""
    return None if total is None or not count else int(total) / (int(count) * unit)


def metrics(totals: Totals) -> dict[str, Any]:
    """The stage's metrics. `formed` groups are those with enough rollouts, flat ones included."""
    figures = totals.figures
    one = {name: int(figures.get_column(name).sum() or 0) for name in figures.columns[2:]}
    by_module = figures.group_by("module").agg(pl.col("reward_sum").sum(), pl.col("rewards").sum()).sort("module")
    rewards = {module: _ratio(total, count, MICRO) for module, total, count in by_module.iter_rows()}
    return {
        "rollouts": totals.rollouts,
        "invocations": totals.invocations,
        "groups": totals.groups,
        "members": totals.members,
        "flat_groups": one["flat_groups"],
        "flat_share": one["flat_groups"] / one["formed"] if one["formed"] else 0.0,
        "small_groups": one["small_groups"],
        "copies": one["copies_fill"] + one["copies_select"],
        "reward": {module: value for module, value in rewards.items() if value is not None},
        "nothing_to_train": not totals.moving,
    }
