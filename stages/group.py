"""The group stage: from rollouts to groups with advantages (mmGRPO, arXiv 2508.04660).

A group holds the invocations of one module at one position over the rollouts of one example; its advantages compare
them with each other. The stage reads rollouts and invocations, writes the narrow group index (token ids stay in the
invocations), every excluded row with its reason, and a summary. Equal inputs give equal bytes, whatever the order,
the sharding or the number of threads.
"""

from __future__ import annotations

from typing import Any

from schemas.execution import Execution
from schemas.groups import EXCLUDED, GROUPS, SUMMARY
from schemas.parquet import write_table
from schemas.recipe import Recipe
from stages.contract import Inputs, Out
from stages.grouping.job import group_chunk
from stages.grouping.load import load_chunk

NAME = "group"
VERSION = 1


def recipe_slice(recipe: Recipe) -> dict[str, Any]:
    """What of the recipe decides the groups: the group section, the seed, K's default and the balance."""
    return {
        "seed": recipe.seed,
        "group": recipe.group.model_dump(mode="json"),
        "k": recipe.group.k or recipe.rollout.rollouts,
        "balance": recipe.train.balance,
        "context": recipe.model.context,
    }


def run(inputs: Inputs, recipe: Recipe, execution: Execution, out: Out) -> dict[str, Any]:
    """Group one iteration's rollouts.

    Reads `rollouts.parquet` and `invocations.parquet` of the artifact `rollout`; writes `groups.parquet`,
    `excluded.parquet` and `summary.parquet`.

    Returns:
        Metrics; `nothing_to_train` is true when no member with a nonzero advantage is left.

    Raises:
        DataError: when the inputs break their contract.
    """
    rollout = inputs["rollout"]
    chunk = load_chunk([rollout.file("rollouts.parquet")], [rollout.file("invocations.parquet")])
    result = group_chunk(chunk, recipe)
    for name, frame, spec in (
        ("groups", result.groups, GROUPS),
        ("excluded", result.excluded, EXCLUDED),
        ("summary", result.summary, SUMMARY),
    ):
        path = out.scratch / f"{name}.parquet"
        write_table(frame, path, spec)
        out.commit_shard(path.name, path)
    for reason, count in result.reasons.items():
        out.exclude(reason, count)
    out.progress(chunk.calls.height, chunk.calls.height, "invocations")
    return result.metrics
