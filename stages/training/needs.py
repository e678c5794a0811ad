"""Which policies a train stage needs log-probabilities of, beside what its own forward passes give.

Three policies take part: pi_0, the adapter at the start of the stage; the reference of the KL; and the policies that
sampled the data. Nothing is scored that is known otherwise:

- pi_0 is the policy of the very forward pass that the loss is computed from, in a stage of one step without dropout.
- The reference is pi_0 where it is the previous adapter, and where no adapter has been trained yet: a fresh one
  changes nothing, so that the base is pi_0. With `beta = 0` there is none.
- Data sampled by pi_0 have pi_0's log-probabilities.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from schemas.groups import GROUPS
from schemas.parquet import read_frame
from schemas.recipe import Recipe
from schemas.recipe_training import TrainSection


@dataclass(frozen=True)
class Grouped:
    """What of a group table decides which policies are scored."""

    examples: int
    policies: tuple[str, ...]
    """Policies that sampled members, sorted; members of unknown ones, and teachers', have none."""
    moving: bool
    """Whether any advantage is not 0."""


@dataclass(frozen=True)
class Needs:
    """Policies to score the group's invocations with."""

    old: bool = False
    """pi_0."""
    reference: bool = False
    """The base, as a policy of its own."""
    behaviours: tuple[str, ...] = ()
    """Older policies, each for the members that it sampled."""


def look(groups: Path) -> Grouped:
    """Read what counts of groups.parquet."""
    import polars as pl

    frame = read_frame(
        groups, GROUPS, columns=["example_id", "policy", "source", "advantage", "weight"], validate=False
    )
    members = frame.filter(pl.col("weight") > 0)
    students = members.filter(~pl.col("source").str.starts_with("teacher:"))
    return Grouped(
        examples=members["example_id"].n_unique(),
        policies=tuple(students["policy"].drop_nulls().unique().sort().to_list()),
        moving=bool((members["advantage"] != 0).any()),
    )


def needs(
    recipe: Recipe, grouped: Grouped | None, *, policy: str | None, fresh: bool, archived: Collection[str]
) -> Needs:
    """What the train stage of an iteration will need.

    Args:
        recipe: the whole recipe.
        grouped: None while the groups are not made: then what a full iteration of the recipe would need.
        policy: pi_0's digest; None while it is not made.
        fresh: whether pi_0 is the base, no adapter having been trained yet.
        archived: digests of the policies whose adapters the run has.
    """
    train = recipe.train
    if grouped is not None and (not grouped.examples or (train.beta == 0 and not grouped.moving)):
        return Needs()
    examples = recipe.rollout.examples if grouped is None else grouped.examples
    steps = train.epochs * -(-examples // train.examples_per_step)
    others = [] if grouped is None else [other for other in grouped.policies if other != policy and other in archived]
    return Needs(
        old=needs_old(steps, recipe.adapter.dropout),
        reference=train.beta != 0 and not reference_is_old(train, fresh=fresh),
        behaviours=tuple(others) if needs_behaviours(train) else (),
    )


def needs_old(steps: int, dropout: float) -> bool:
    """Whether pi_0 differs from the policy of some step's forward pass."""
    return steps > 1 or dropout > 0


def reference_is_old(train: TrainSection, *, fresh: bool) -> bool:
    """Whether the KL's reference is pi_0."""
    return train.beta != 0 and (fresh or train.reference == "previous")


def needs_behaviours(train: TrainSection) -> bool:
    """Whether older policies are scored: as mu, or for the effective sample size, which compares like with like."""
    return train.rho != "none" and (train.ess_floor > 0 or train.behaviour == "recomputed")
