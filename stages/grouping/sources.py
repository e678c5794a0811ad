"""Where rollouts come from: behaviour policies, their age, and how much of an example a source may supply."""

from __future__ import annotations

import polars as pl

from schemas.errors import DataError
from schemas.recipe_data import GroupSection
from schemas.rollouts import NOT_OF_THE_PROGRAM
from schemas.validate import SAMPLES
from stages.grouping.reasons import first_reason, reason
from stages.grouping.rules import Rules

STUDENT, TEACHER = "student", "teacher"


def kind(source: pl.Expr) -> pl.Expr:
    """`student`, `teacher` or `ingest`: what stands before the colon of a source."""
    return source.str.split_exact(":", 1).struct.field("field_0")


def policy_ages(policies: pl.DataFrame) -> pl.DataFrame:
    """(policy, age): how many policies of the run are newer. The order is that of their first iteration."""
    ordered = policies.sort("iteration", "policy", descending=True)
    return ordered.select("policy", age=pl.int_range(pl.len()))


def check_policies(rollouts: pl.DataFrame, ages: pl.DataFrame, group: GroupSection) -> None:
    """Refuse rollouts whose behaviour policy is unknown, unless the recipe leaves them out or admits them.

    Teachers' are no such case: they are known by name, and what has no mu among them is trained as likelihood, capped.
    A null policy means that nobody knows what sampled the data; its importance ratio would be 1 by construction, and
    the result no mmGRPO. A student's policy that is not of this run has no age, so no staleness limit could hold.

    Raises:
        DataError: naming rollouts.
    """
    if group.unknown_policy != "refuse":
        return
    pairs = rollouts.select("source", "policy").unique()
    for broken, what in (
        (_without_policy(), "have no behaviour policy"),
        (_foreign(ages), "were sampled by a student policy that is not of this run"),
    ):
        if pairs.filter(broken).height:
            rows = rollouts.filter(broken)
            names = ", ".join(f"rollout_id={name}" for name in rows.get_column("rollout_id").head(SAMPLES).to_list())
            raise DataError(
                f"{rows.height} rollouts {what}, for example {names}. Set group.unknown_policy = "
                "'exclude' to leave them out, or 'admit' to train on them as advantage-weighted likelihood."
            )


def _without_policy() -> pl.Expr:
    return pl.col("policy").is_null() & (kind(pl.col("source")) != TEACHER)


def _foreign(ages: pl.DataFrame) -> pl.Expr:
    known = pl.col("policy").is_in(ages.get_column("policy").implode())
    return pl.col("policy").is_not_null() & ~known & (pl.col("source") == STUDENT)


def source_reasons(rollouts: pl.DataFrame, ages: pl.DataFrame, rules: Rules) -> pl.DataFrame:
    """Add `out` and `teacher` to rollouts.

    `out` is `held_out`, `unknown_policy`, `stale`, `not_scored`, `reward_missing`, `source_cap` or null.

    A capped source (a whole source such as `teacher:big`, or a kind such as `teacher`) keeps its first m rollouts of
    an example, m being the largest number with m <= cap * (m + u), where u counts the example's rollouts of sources
    without a cap. Ages apply to policies of the run; a teacher's own policy has none.
    """
    group = rules.group
    pairs = rollouts.select("source", "policy").unique().join(ages, on="policy", how="left")
    pairs = pairs.select(
        "source",
        "policy",
        stale=pl.col("age").fill_null(0) > group.staleness,
        teacher=kind(pl.col("source")) == TEACHER,
    )
    if pairs.select(pl.any_horizontal(pl.col("stale", "teacher").any())).item():
        frame = rollouts.join(pairs, on=["source", "policy"], how="left", maintain_order="left", nulls_equal=True)
    else:
        frame = rollouts.with_columns(stale=pl.lit(False), teacher=pl.lit(False))
    missing = (pl.col("status") == "ok") & pl.col("q").is_null()
    held = pl.col("example_id").is_in(sorted(rules.held)) if rules.held else pl.lit(False)
    failed = pl.col("status").is_in(NOT_OF_THE_PROGRAM) & (group.outage == "exclude")
    unknown = (_without_policy() | _foreign(ages)) if group.unknown_policy == "exclude" else pl.lit(False)
    found = {"held_out": held, "unknown_policy": unknown, "stale": pl.col("stale"), "not_scored": failed}
    out = first_reason([*found.items(), ("reward_missing", missing)])
    frame = frame.with_columns(out=out).drop("stale")
    return _cap(frame, group) if group.source_caps else frame


def _cap(frame: pl.DataFrame, group: GroupSection) -> pl.DataFrame:
    caps = pl.DataFrame(
        {"name": list(group.source_caps), "cap": [float(cap) for cap in group.source_caps.values()]},
        schema={"name": pl.String, "cap": pl.Float64},
    )
    exact = caps.select(source="name", exact="cap", exact_name="name")
    by_kind = caps.select(kind="name", by_kind="cap", kind_name="name")
    frame = (
        frame.with_columns(kind=kind(pl.col("source")))
        .join(exact, on="source", how="left", maintain_order="left")
        .join(by_kind, on="kind", how="left", maintain_order="left")
        .with_columns(cap=pl.coalesce("exact", "by_kind"), name=pl.coalesce("exact_name", "kind_name"))
    )
    live = pl.col("out").is_null()
    free = (live & pl.col("cap").is_null()).sum().over("e")
    rank = live.cast(pl.Int64).cum_sum().over("e", "name")
    allowed = (pl.col("cap") * free / (1 - pl.col("cap")) + 1e-9).floor()
    over = live & pl.col("cap").is_not_null() & (pl.col("cap") < 1) & (rank > allowed)
    out = pl.when(over).then(reason("source_cap")).otherwise(pl.col("out"))
    return frame.with_columns(out=out).drop("kind", "exact", "by_kind", "exact_name", "kind_name", "cap", "name")
