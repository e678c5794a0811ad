"""What each call is worth, or why it is in no group: credit and failures.

mmGRPO (arXiv 2508.04660) gives every invocation of a rollout the rollout's one reward. Rewards are held as whole
millionths from here on, so that no later result depends on the order of a sum.

Credit. A module named in `credit` carries a mix instead: the sum of weight times value over `reward` (the program's)
and named reward parts. Where a part is missing the module's calls are left out (`reward_missing`).

Failures. A call whose final attempt did not parse carries a *format reward*, whatever became of its rollout:
`format_failure_score` when no expected field was read, rising to `failure_score` with the share that was. Its
siblings in a rollout that ended `parse_failed` carry `failure_score`, or the format reward of the rollout's worst
call (`upstream_on_failure = "format"`), or are left out (`exclude`: survivorship bias, counted). In a rollout that
crashed otherwise every call carries `failure_score`. A completion cut by the length limit carries `failure_score` (its
format reward if it did not parse either) or is masked out; its siblings keep the rollout's reward. A rollout that
ended ok without a reward is left out, as is, if `outage` says so, one that the engine or the metric failed: nothing is
invented for it. A reward of 0 is a reward like any other.

Retries. The final attempt of an invocation stands for it. Of the earlier ones the first that failed to parse joins the
same group with its own format reward, outside mean and std; further ones are left out (`earlier_attempt`).
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import polars as pl

from schemas.errors import ContractError, DataError, Violation
from schemas.recipe_data import GroupSection
from schemas.rollouts import TRANSFERS
from schemas.table import REWARD_BOUND
from schemas.validate import SAMPLES
from stages.grouping.load import Chunk
from stages.grouping.reasons import first_reason
from stages.grouping.rules import Rules
from stages.grouping.runs import Bools, Ints, compact

MICRO = 1_000_000
"""Rewards are counted in millionths."""

REWARD = "reward"
"""The name of the program's reward in a credit mix."""


def micro(value: pl.Expr | float) -> pl.Expr:
    """A reward in whole millionths (ties to even)."""
    expression = value if isinstance(value, pl.Expr) else pl.lit(value, dtype=pl.Float64)
    return (expression * MICRO).round().cast(pl.Int64)


def parts_of(group: GroupSection) -> list[str]:
    """The reward parts that credit names."""
    return sorted({name for mix in group.credit.values() for name in mix} - {REWARD})


def score_rollouts(rollouts: pl.DataFrame, group: GroupSection) -> pl.DataFrame:
    """Add `q` (the program's reward in millionths) and, per module of `credit`, `q:MODULE`; null where there is none.

    Also `part:NAME`, the value of each part that credit names.

    Raises:
        ContractError: when a mix leaves the bounds of a reward.
    """
    parts = parts_of(group)
    frame = rollouts.with_columns(q=micro(pl.col("reward")))
    if parts:
        read = pl.col("reward_parts").str.json_decode(pl.Struct(dict.fromkeys(parts, pl.Float64)))
        frame = frame.with_columns(read.struct.field(part).alias(f"part:{part}") for part in parts)
    for module, mix in group.credit.items():
        mixed = sum(
            (weight * pl.col(REWARD if name == REWARD else f"part:{name}") for name, weight in mix.items()), pl.lit(0.0)
        )
        _check_bounds(frame, module, mixed)
        frame = frame.with_columns(micro(mixed).alias(f"q:{module}"))
    return frame


def parts_seen(rollouts: pl.DataFrame, group: GroupSection) -> tuple[int, frozenset[str]]:
    """Rollouts that ended ok, and the parts that at least one of them has."""
    ok = rollouts.filter(pl.col("status") == "ok")
    held = [part for part in parts_of(group) if ok.get_column(f"part:{part}").null_count() < ok.height]
    return ok.height, frozenset(held)


def check_parts(ok: int, seen: frozenset[str], group: GroupSection) -> None:
    """Over the whole table: credit names no part that no rollout has.

    Raises:
        DataError: naming the parts.
    """
    lost = [part for part in parts_of(group) if part not in seen]
    if ok and lost:
        named = ", ".join(f"'{part}'" for part in lost)
        raise DataError(f"group.credit names {named}, which the metric gave none of {ok} rollouts that ended ok")


def _check_bounds(frame: pl.DataFrame, module: str, mixed: pl.Expr) -> None:
    wild = frame.filter(~(mixed.is_finite() & (mixed.abs() <= REWARD_BOUND)).fill_null(True))
    if wild.height:
        samples = tuple(f"rollout_id={name}" for name in wild.get_column("rollout_id").head(SAMPLES).to_list())
        rule = f"the credit of '{module}' is finite and within [{-REWARD_BOUND:g}, {REWARD_BOUND:g}]"
        raise ContractError("rollouts", "reward_parts", [Violation(rule, wild.height, samples)])


def judge(chunk: Chunk, rollouts: pl.DataFrame, rules: Rules) -> tuple[pl.DataFrame, pl.DataFrame]:
    """The chunk's calls with `q` (reward in millionths), `reason` (null: usable), `final` and `early`.

    Args:
        chunk: what was loaded.
        rollouts: its rollouts with `q` and `out` (see `score_rollouts` and `sources.source_reasons`).
        rules: the recipe's rules.

    Returns:
        (calls, rollouts). Calls are in their order; `final` marks the last attempt of an invocation and `early` its
        first failed earlier one; `q` may be null where `reason` is not. Rollouts have `carried`, what a sound call of
        theirs is worth, and `carried:MODULE` for the modules of `credit`.
    """
    group = rules.group
    calls = _mark_attempts(chunk)
    rollouts = _carried(rollouts, calls, group)
    r = calls.get_column("r")
    calls = calls.with_columns(rollouts.get_column(name).gather(r) for name in ("carried", "out", "upstream"))
    calls = calls.with_columns(_credit(chunk, rollouts, calls, group))
    failure = micro(group.failure_score)
    worth = pl.when("failed").then(format_reward(group, pl.col("share"))).when("cut").then(failure).otherwise("carried")
    calls = calls.with_columns(q=worth, reason=_reason(rules)).drop("carried", "out", "upstream")
    return calls, rollouts


def format_reward(group: GroupSection, share: pl.Expr) -> pl.Expr:
    """The reward of a completion of whose expected fields `share` was parsed."""
    low, high = group.format_failure_score, group.failure_score
    return micro(low + share * (high - low))


def _mark_attempts(chunk: Chunk) -> pl.DataFrame:
    """Add `final` and `early`, and `again` to repeated rows of one (rollout, module, invocation_index, attempt)."""
    calls, kinds = chunk.calls, len(chunk.modules) * chunk.positions
    r, m, p, attempt = (calls.get_column(name).to_numpy() for name in ("r", "m", "p", "attempt"))
    place, places = compact(r.astype(np.int64) * kinds + m * chunk.positions + p, chunk.rollouts.height * kinds)
    again = _again(place, len(places), attempt)
    retries = np.flatnonzero((attempt > 0) & ~again)
    last = np.zeros(len(places), dtype=np.int32)
    np.maximum.at(last, place[retries], attempt[retries])
    final = ~again & (attempt == last[place])
    failed = calls.get_column("failed").to_numpy()
    tries = np.flatnonzero(failed & ~final & ~again)
    tries = tries[np.argsort(attempt[tries], kind="stable")]
    early = np.zeros(len(place), dtype=bool)
    early[tries[np.unique(place[tries], return_index=True)[1]]] = True
    return calls.with_columns(final=pl.Series(final), early=pl.Series(early), again=pl.Series(again))


def _again(place: Ints, size: int, attempt: npt.NDArray[np.int32]) -> Bools:
    """Rows whose (place, attempt) stands further up already."""
    again = np.zeros(len(place), dtype=bool)
    first = np.flatnonzero(attempt == 0)
    seen = np.zeros(size, dtype=bool)
    seen[place[first]] = True
    others = np.flatnonzero(attempt > 0)
    if seen.sum() < len(first) or len(others):
        for rows in (first, others) if seen.sum() < len(first) else (others,):
            pairs = pl.DataFrame({"place": place[rows], "attempt": attempt[rows]})
            again[rows] = ~pairs.select(pl.struct("place", "attempt").is_first_distinct()).to_series().to_numpy()
    return again


def _carried(rollouts: pl.DataFrame, calls: pl.DataFrame, group: GroupSection) -> pl.DataFrame:
    """Add to rollouts `carried` (what a sound call of them is worth) and `upstream` (its siblings are left out)."""
    failure = micro(group.failure_score)
    sibling = failure
    if group.upstream_on_failure == "format":
        worst = calls.lazy().filter("failed", "final").group_by("r").agg(worst=pl.col("share").min()).collect()
        rollouts = rollouts.with_row_index("r").join(worst, on="r", how="left", maintain_order="left").drop("r")
        sibling = format_reward(group, pl.col("worst").fill_null(0.0))
    parse_failed = pl.col("status") == "parse_failed"
    names = ["q", *(f"q:{module}" for module in group.credit)]
    carried = [
        pl.when(pl.col("status") == "ok").then(pl.col(name)).when(parse_failed).then(sibling).otherwise(failure)
        .alias(name.replace("q", "carried", 1))
        for name in names
    ]  # fmt: skip
    return rollouts.with_columns(*carried, upstream=parse_failed & (group.upstream_on_failure == "exclude"))


def _credit(chunk: Chunk, rollouts: pl.DataFrame, calls: pl.DataFrame, group: GroupSection) -> pl.Expr:
    """`carried` with the mix of the modules that credit names."""
    worth: pl.Expr = pl.col("carried")
    for module in group.credit:
        if module in chunk.modules:
            mixed = rollouts.get_column(f"carried:{module}").gather(calls.get_column("r"))
            worth = pl.when(pl.col("m") == chunk.modules.index(module)).then(mixed).otherwise(worth)
    return worth.alias("carried")


def _reason(rules: Rules) -> pl.Expr:
    """Why a call is left out, before any group is formed."""
    group, length_counts = rules.group, pl.col("cut") & (rules.group.truncated == "mask")
    own = first_reason(
        [
            ("duplicate", pl.col("again")),
            ("not_trainable", ~pl.col("trainable")),
        ]
    )
    later = first_reason(
        [
            ("reward_missing", pl.col("carried").is_null()),
            ("context_overflow", pl.col("overflow")),
            *((why, pl.col("transfer").eq_missing(why)) for why in TRANSFERS if why != "ok"),
            ("no_completion", pl.col("no_ids")),
            ("over_long", pl.col("long")),
            ("concurrent", pl.col("concurrent") & (not (group.admit_concurrent or rules.trajectory))),
            ("truncated", length_counts),
            ("earlier_attempt", ~pl.col("final") & ~pl.col("early")),
            ("upstream_of_failure", pl.col("upstream") & ~pl.col("failed")),
        ]
    )
    return pl.coalesce(own, pl.col("out"), later)
