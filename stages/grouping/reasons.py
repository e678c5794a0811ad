"""Why a row is in no group: the names that stand in `excluded.parquet`, the manifest and the report."""

from __future__ import annotations

import polars as pl

REASONS = {
    "duplicate": "the same call recorded again: the row with the lowest call_index stays",
    "no_calls": "the rollout ended before its first LM call (listed with a null call_index)",
    "not_trainable": "a call of another LM, or of a module that the recipe does not train",
    "held_out": "its example is of a split that policies are scored on, not of the one that they are trained on",
    "unknown_policy": "nobody knows which policy sampled it, and `unknown_policy` leaves such rollouts out",
    "stale": "its policy is more than `staleness` policies older than the newest",
    "not_scored": "the engine or the metric failed in its rollout, and `outage` leaves such rollouts out",
    "source_cap": "its source already supplies its share of the example's rollouts",
    "reward_missing": "the rollout ended ok but its metric, or a part that its module's credit needs, is null",
    "context_overflow": "the prompt left no room for a completion",
    "not_rendered": "a teacher's call: its recorded inputs do not say what the student would have been sent",
    "not_parsed": "a teacher's completion that does not give the same values under the student's prompt",
    "not_encoded": "a teacher's completion that the student's tokenizer does not give back",
    "no_completion": "no completion ids were recorded, so there is nothing to train on",
    "over_long": "prompt plus completion are longer than model.context",
    "concurrent": "the call overlapped another call of its rollout, so its index is not a role",
    "truncated": "the completion was cut by the length limit, and the recipe masks such completions",
    "earlier_attempt": "a retry that was followed by another: only the first failed one joins the group",
    "upstream_of_failure": "another call of the rollout failed to parse, and the recipe leaves its siblings out",
    "strict": "a rollout of the example never called the module, and the recipe is strict",
    "position_truncated": "beyond the positions that every rollout reached (pad = truncate)",
    "small_group": "fewer than `min_group` distinct rollouts in the group",
    "not_selected": "left out by the selection of K members",
    "flat_group": "all rewards of the group are equal within `min_spread`",
}
"""Reasons in order of precedence: a row has the first that applies."""

Reason = pl.Enum(list(REASONS))


def reason(name: str) -> pl.Expr:
    """The reason as a literal of the enum."""
    assert name in REASONS, name
    return pl.lit(name, dtype=Reason)


def first_reason(rules: list[tuple[str, pl.Expr]]) -> pl.Expr:
    """The first reason that applies, null when none does."""
    chosen: pl.Expr = pl.lit(None, dtype=Reason)
    for name, applies in reversed(rules):
        chosen = pl.when(applies).then(reason(name)).otherwise(chosen)
    return chosen
