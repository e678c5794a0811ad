"""What each call is worth, or why it is in no group: credit and failures.

mmGRPO (arXiv 2508.04660) gives every invocation of a rollout the rollout's one reward. Rewards are held as whole
millionths from here on, so that no later result depends on the order of a sum.

Failures. A call whose final attempt did not parse carries a *format reward*, whatever became of its rollout:
`format_failure_score` when no expected field was read, rising to `failure_score` with the share that was. Its
siblings in a rollout that ended `parse_failed` follow `upstream_on_failure`. In a rollout that crashed otherwise every
call carries `failure_score`. A rollout that ended ok without a reward is left out: nothing is invented for it.
"""

from __future__ import annotations

import polars as pl

from schemas.recipe import GroupSection
from stages.grouping.load import Chunk
from stages.grouping.reasons import Reason, reason

MICRO = 1_000_000
"""Rewards are counted in millionths."""


def micro(value: pl.Expr | float) -> pl.Expr:
    """A reward in whole millionths (ties to even)."""
    expression = value if isinstance(value, pl.Expr) else pl.lit(value, dtype=pl.Float64)
    return (expression * MICRO).round().cast(pl.Int64)


def judge(chunk: Chunk, group: GroupSection) -> pl.DataFrame:
    """The chunk's calls with `q` (reward in millionths), `reason` (null: usable) and `final` (its last attempt).

    Args:
        chunk: what was loaded.
        group: the recipe's rules.

    Returns:
        The calls in their order; `q` may be null where `reason` is not.
    """
    calls = _mark_attempts(chunk.calls)
    of = chunk.rollouts.select("status", q0=micro(pl.col("reward")))
    calls = calls.with_columns(
        *(of.get_column(name).gather(calls.get_column("r")).alias(name) for name in ("status", "q0")),
    )
    calls = _format_share(calls)
    return calls.with_columns(q=_reward(group), reason=_reason(group)).drop("q0", "status", "worst")


def _mark_attempts(calls: pl.DataFrame) -> pl.DataFrame:
    """Add `final` (the last attempt of its invocation) and `early` (its first failed earlier attempt)."""
    retried = calls.lazy().filter(pl.col("attempt") > 0).group_by("r", "m", "p").agg(last=pl.col("attempt").max())
    joined = calls.lazy().join(retried, on=["r", "m", "p"], how="left", maintain_order="left")
    marked = joined.with_columns(final=pl.col("last").is_null() | (pl.col("attempt") == pl.col("last"))).collect()
    first = (
        marked.lazy()
        .filter(~pl.col("final") & pl.col("failed"))
        .group_by("r", "m", "p")
        .agg(first=pl.col("attempt").min())
    )
    joined = marked.lazy().join(first, on=["r", "m", "p"], how="left", maintain_order="left")
    early = ~pl.col("final") & pl.col("attempt").eq_missing(pl.col("first"))
    return joined.with_columns(early=early).drop("last", "first").collect()


def _format_share(calls: pl.DataFrame) -> pl.DataFrame:
    """Add `worst`: the smallest parsed share among the final attempts that failed in the call's rollout."""
    worst = calls.lazy().filter("failed", "final").group_by("r").agg(worst=pl.col("share").min())
    return calls.lazy().join(worst, on="r", how="left", maintain_order="left").collect()


def _format_reward(group: GroupSection, share: pl.Expr) -> pl.Expr:
    low, high = group.format_failure_score, group.failure_score
    return micro(low + share * (high - low))


def _reward(group: GroupSection) -> pl.Expr:
    failure = micro(group.failure_score)
    upstream = failure
    if group.upstream_on_failure == "format":
        upstream = _format_reward(group, pl.col("worst").fill_null(0.0))
    return (
        pl.when("failed")
        .then(_format_reward(group, pl.col("share")))
        .when("cut")
        .then(failure)
        .when(pl.col("status") == "ok")
        .then(pl.col("q0"))
        .when(pl.col("status") == "parse_failed")
        .then(upstream)
        .otherwise(failure)
    )


def _reason(group: GroupSection) -> pl.Expr:
    status_ok = pl.col("status") == "ok"
    upstream = (pl.col("status") == "parse_failed") & ~pl.col("failed")
    rules: list[tuple[str, pl.Expr]] = [
        ("not_trainable", ~pl.col("trainable")),
        ("reward_missing", status_ok & pl.col("q0").is_null()),
        ("context_overflow", pl.col("overflow")),
        ("no_completion", pl.col("no_ids")),
        ("concurrent", pl.col("concurrent") & (not group.admit_concurrent)),
        ("truncated", pl.col("cut") & (group.truncated == "mask")),
        ("earlier_attempt", ~pl.col("final") & ~pl.col("early")),
        ("upstream_of_failure", upstream & (group.upstream_on_failure == "exclude")),
    ]
    chosen = pl.lit(None, dtype=Reason)
    for name, applies in reversed(rules):
        chosen = pl.when(applies).then(reason(name)).otherwise(chosen)
    return chosen
