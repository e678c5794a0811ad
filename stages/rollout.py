"""The rollout stage: program runs on this iteration's examples, every LM call recorded with its ids and log-probs."""

from __future__ import annotations

from functools import partial
from typing import Any

import polars as pl

from schemas.execution import Execution
from schemas.parquet import read_rows, write_table
from schemas.recipe import Recipe
from schemas.rollouts import INVOCATIONS, ROLLOUTS
from schemas.tries import TRIES
from stages.contract import Inputs, Out
from stages.programs.choice import order, refuse_few
from stages.programs.desk import Shape
from stages.programs.figures import call_figures, first_error, judge_figures, status_counts
from stages.programs.jobs import Runs
from stages.programs.load import load_program
from stages.programs.prompts import frozen_prompts, running_digest
from stages.programs.refill import refill_figures, waves
from stages.programs.shards import compact, open_session, read_split, sample
from stages.programs.shared import shared_by
from stages.programs.slices import run_slice
from stages.programs.worth import tries, worths

NAME = "rollout"
VERSION = 4
SOURCE = "student"
JUDGED_BY = {"failure_score", "format_failure_score", "min_spread", "truncated"}
"""Fields of the group section that say what a failed rollout is worth, and what mixed rewards are."""


def recipe_slice(recipe: Recipe) -> dict[str, Any]:
    """What decides which runs are made and how they are sampled."""
    chosen = {
        **run_slice(recipe),
        "examples": {"train": recipe.examples.train},
        "rollout": recipe.rollout.model_dump(mode="json") | {"rollouts": recipe.student_rollouts},
    }
    if _judges(recipe):
        chosen["group"] = recipe.group.model_dump(mode="json", include=JUDGED_BY)
    return chosen


def _judges(recipe: Recipe) -> bool:
    """Whether rewards decide which examples are run."""
    return recipe.rollout.choice == "spread" or recipe.rollout.refill is not None


def run(inputs: Inputs, recipe: Recipe, execution: Execution, out: Out) -> dict[str, Any]:
    """Write rollouts.parquet and invocations.parquet, sorted by (example_id, rollout_index[, call_index]).

    With `choice = "spread"` also tries.parquet, for the next iteration.

    Params: `iteration`, `policy`. Artifacts: `examples`, `program`, `base`, `adapter` for a trained policy, `prompts`
    where they were optimized, and `earlier`, the last iteration's rollout artifact, where examples are chosen by what
    it knows of them.

    Raises:
        RecipeError, DataError: for a program, split or model that cannot be used.
        StageError: when the metric or the engine failed in every run.
    """
    iteration = int(inputs.params["iteration"])
    load = partial(load_program, recipe, inputs.root, frozen_prompts(inputs))
    program = load()
    before = read_rows(inputs["earlier"].file("tries.parquet"), TRIES) if "earlier" in inputs.artifacts else []
    rows = _examples(recipe, inputs)
    names = order(sorted(rows), recipe, iteration, {row["example_id"]: row["deviation"] for row in before})
    section = recipe.rollout

    runs, count = _runs(recipe, inputs), recipe.student_rollouts
    sample(
        program,
        ({name: runs.of(rows[name], count) for name in wave} for wave in waves(names, recipe, out)),
        partial(open_session, recipe, execution, inputs, section.sampling, section.parse_retries),
        out,
        shape=Shape(ROLLOUTS, "rollouts", runs.row),
        concurrency=execution.concurrency,
        shared=shared_by(inputs, recipe, load),
    )
    rollouts = pl.DataFrame(compact(out, ROLLOUTS))
    invocations = pl.DataFrame(compact(out, INVOCATIONS))
    found = worths(rollouts, invocations, recipe.group) if _judges(recipe) else {}
    if section.choice == "spread":
        draft = out.scratch / "tries.parquet"
        write_table(tries(found, iteration, before), draft, TRIES)
        out.commit_shard("tries.parquet", draft)
    rewards = rollouts.filter(pl.col("status") == "ok")["reward"]
    examples = rollouts["example_id"].n_unique()
    return {
        "examples": examples,
        "rollouts": rollouts.height,
        "statuses": status_counts(rollouts),
        "first_error": first_error(rollouts),
        "mean_reward": None if rewards.is_empty() else rewards.mean(),
        **refill_figures(found, examples, len(rows), recipe),
        **judge_figures(out),
        **call_figures(invocations, rollouts.height, None if program.modules is None else list(program.modules)),
    }


def _examples(recipe: Recipe, inputs: Inputs) -> dict[str, dict[str, Any]]:
    """The train split, by example_id.

    Raises:
        RecipeError: when it has fewer examples than an iteration needs.
    """
    split = recipe.examples.train
    rows = {row["example_id"]: row for row in read_split(inputs, split)}
    refuse_few(recipe, len(rows))
    return rows


def _runs(recipe: Recipe, inputs: Inputs) -> Runs:
    iteration = int(inputs.params["iteration"])
    return Runs(
        program=running_digest(inputs),
        policy=str(inputs.params["policy"]),
        source=SOURCE,
        seed=recipe.seed,
        iteration=iteration,
        draws=(recipe.seed, "sample", iteration),
    )
