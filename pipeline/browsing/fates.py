"""What became of calls: the groups they stand in, what the train stage took of them, why they were left out."""

from __future__ import annotations

from typing import Any

import polars as pl

from pipeline.browsing.sources import Grouped, scan
from schemas.groups import EXCLUDED, GROUPS
from schemas.training import TRAINED
from stages.contract import Artifact
from stages.grouping.reasons import REASONS

Place = tuple[str, int | None]
"""(rollout_id, call_index); without a call_index: of the rollout as a whole."""

_MEMBER = ["group_id", "rollout_id", "call_index", "invocation_index", "copy_kind", "reward", "advantage", "weight"]


def fates(groups: list[Grouped], made_in: Artifact, ids: list[str]) -> dict[Place, list[dict[str, Any]]]:
    """By call, what each iteration that grouped the rollouts of an artifact made of it, in order.

    A member has `reward`, `advantage`, `weight`, the `position` that it stands at, how many `members` of the group the
    call is (its copies counted) and of those how many were `trained` on (None: not trained yet). What is in no group
    has a `reason` and its `meaning`.
    """
    found: dict[Place, list[dict[str, Any]]] = {}
    for item in groups:
        if made_in.digest not in item.sources:
            continue
        for row in [*_members(item, ids), *_excluded(item, ids)]:
            found.setdefault((row.pop("rollout_id"), row.pop("call_index")), []).append(row)
    return found


def _members(item: Grouped, ids: list[str]) -> list[dict[str, Any]]:
    rows = scan(item.group, GROUPS).select(_MEMBER).filter(pl.col("rollout_id").is_in(ids))
    key = ["rollout_id", "call_index", "group_id"]
    is_copy = pl.col("copy_kind") != "none"
    each = rows.group_by(key).agg(
        pl.first("reward", "advantage", "weight"),
        position=pl.first("invocation_index"),
        members=pl.len(),
        copies=is_copy.sum(),
    )
    order = ["rollout_id", "call_index", pl.col("copies") == pl.col("members"), "position", "group_id"]
    # Where a call stands in its own group and, as a filling copy, in others, its own comes first.
    table = _with_trained(each, item).sort(order).collect()
    return [{"iteration": item.iteration, "reason": None, "meaning": None, **row} for row in table.to_dicts()]


def _with_trained(members: pl.LazyFrame, item: Grouped) -> pl.LazyFrame:
    """How many of a call's members were trained on; null before the train stage has said so."""
    if item.train is None:
        return members.with_columns(trained=pl.lit(None, pl.Int32))
    if not item.train.manifest.metrics.get("trained"):
        return members.with_columns(trained=pl.lit(0, pl.Int32))
    if "trained.parquet" not in item.train.manifest.files:
        return members.with_columns(trained=pl.col("members").cast(pl.Int32))
    counts = scan(item.train, TRAINED).rename({"members": "trained"})
    joined = members.join(counts, on=["rollout_id", "call_index", "group_id"], how="left")
    return joined.with_columns(pl.col("trained").fill_null(0))


def _excluded(item: Grouped, ids: list[str]) -> list[dict[str, Any]]:
    rows = scan(item.group, EXCLUDED).select("rollout_id", "call_index", "reason")
    table = rows.filter(pl.col("rollout_id").is_in(ids)).sort("rollout_id", "call_index", "reason").collect()
    return [
        {"iteration": item.iteration, **row, "meaning": REASONS.get(row["reason"], "").replace("`", "") or None}
        for row in table.to_dicts()
    ]
