"""The group stage: from rollouts to groups with advantages (mmGRPO, arXiv 2508.04660).

A group holds the invocations of one module at one position over the rollouts of one example; its advantages compare
them with each other. The stage reads rollouts and invocations, writes the narrow group index (token ids stay in the
invocations), every excluded row with its reason, and a summary. Equal inputs give equal bytes, whatever the order and
sharding of files, the size of ranges, or the number of threads.

The rules stand with the code that keeps them, in the order of the job: `sources` (policies, staleness, caps),
`rewards` (credit, failures, retries), `pad` (PadGroups), `select` (SelectKDiverseElements), `advantage`, `balance`
(weights), `trajectory` (whole rollouts instead of invocations), `reasons` (why a row is in no group).
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from schemas.execution import Execution
from schemas.parquet import read_frame
from schemas.policies import POLICIES
from schemas.recipe import Recipe
from stages.contract import Inputs, Out
from stages.grouping.files import input_files
from stages.grouping.held_out import held_out
from stages.grouping.report import metrics
from stages.grouping.rules import rules_of, slice_of
from stages.grouping.sources import policy_ages
from stages.grouping.tables import open_tables
from stages.grouping.write import write_tables

NAME = "group"
VERSION = 4


def recipe_slice(recipe: Recipe) -> dict[str, Any]:
    """What of the recipe decides the groups: its group section, the seed, K, the balance and the context."""
    return slice_of(recipe)


def run(inputs: Inputs, recipe: Recipe, execution: Execution, out: Out) -> dict[str, Any]:
    """Group one iteration's rollouts.

    Reads the artifacts `rollout` (this iteration's own) and `rollout.NAME` (teachers, snapshots, older iterations),
    `policies.parquet` of the artifact `policies`, and `examples` where a snapshot may hold what is held out. Writes
    `groups.parquet`, `excluded.parquet` and `summary.parquet`.

    Returns:
        Metrics; `nothing_to_train` is true when no member with a nonzero advantage is left.

    Raises:
        RecipeError: when the recipe's rules contradict each other.
        DataError: when the inputs break their contract; it names the file or the rows.
    """
    rules = replace(rules_of(recipe), held=held_out(inputs))
    ages = policy_ages(read_frame(inputs["policies"].file("policies.parquet"), POLICIES))
    tables = open_tables(input_files(inputs), rules)
    totals = write_tables(tables, ages, rules, execution.group_rows, out, workers=inputs.workers)
    for reason, count in totals.reasons().items():
        out.exclude(reason, count)
    return metrics(totals)
