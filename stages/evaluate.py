"""The evaluate stage: one policy's scores on one split."""

from __future__ import annotations

from functools import partial
from typing import Any

import polars as pl

from schemas.execution import Execution
from schemas.recipe import Recipe
from schemas.rollouts import INVOCATIONS
from schemas.scores import SCORES
from stages.contract import Inputs, Out
from stages.programs.desk import Shape
from stages.programs.figures import call_figures, first_error, judge_figures, part_means, status_counts
from stages.programs.jobs import Runs
from stages.programs.load import load_program
from stages.programs.prompts import frozen_prompts, running_digest
from stages.programs.run import Finished, Job
from stages.programs.shards import compact, open_session, read_split, sample
from stages.programs.shared import shared_by
from stages.programs.slices import run_slice
from stages.statistics.means import example_means

NAME = "evaluate"
VERSION = 4
_NOT_SAMPLED = {"bootstrap", "seed", "drift", "drift_calls"}
"""Fields of the evaluate section that do not change what is sampled; the seed counts as the one that it gives."""


def recipe_slice(recipe: Recipe) -> dict[str, Any]:
    """What decides which runs are made, how they are sampled, and what a failure counts."""
    return {
        **run_slice(recipe),
        "seed": recipe.evaluate.seed_of(recipe.seed),
        "evaluate": recipe.evaluate.model_dump(mode="json", exclude=_NOT_SAMPLED),
    }


def run(inputs: Inputs, recipe: Recipe, execution: Execution, out: Out) -> dict[str, Any]:
    """Write scores.parquet and invocations.parquet, sorted by (example_id, sample[, call_index]).

    How long each run took stands in telemetry/latency.parquet: wall clock, and so no part of the artifact's digest.

    Params: `policy`, `split`. Artifacts: `examples`, `program`, `base`, `adapter` for a trained policy, and `prompts`
    where they were optimized.

    Raises:
        RecipeError, DataError: for a program, split or model that cannot be used.
        StageError: when the metric or the engine failed in every run.
    """
    policy, section = str(inputs.params["policy"]), recipe.evaluate
    seed = section.seed_of(recipe.seed)
    load = partial(load_program, recipe, inputs.root, frozen_prompts(inputs))
    program = load()
    jobs = plan_jobs(recipe, inputs)
    sample(
        program,
        [jobs],
        partial(open_session, recipe, execution, inputs, section.sampling, section.parse_retries, judge_seed=seed),
        out,
        shape=Shape(SCORES, "runs", partial(_row, policy=policy), timed=True),
        concurrency=execution.concurrency,
        shared=shared_by(inputs, recipe, load),
    )
    scores = pl.DataFrame(compact(out, SCORES))
    calls = pl.DataFrame(compact(out, INVOCATIONS))
    means = example_means(scores["example_id"].to_list(), scores["score"].to_list(), section.failure_score)
    statuses = status_counts(scores)
    return {
        "split": inputs.params["split"],
        "mean": sum(means.values()) / len(means),
        "n": len(means),
        "runs": scores.height,
        "statuses": statuses,
        "first_error": first_error(scores),
        "failures": {status: count for status, count in statuses.items() if status != "ok"},
        "parts": part_means(scores["parts"]),
        **judge_figures(out),
        **call_figures(calls, scores.height, None if program.modules is None else list(program.modules)),
    }


def plan_jobs(recipe: Recipe, inputs: Inputs) -> dict[str, list[Job]]:
    """The runs by example_id.

    Seeds do not depend on the policy: every policy is scored with the same draws, so that differences between two
    are not those of the dice.
    """
    split, seed = str(inputs.params["split"]), recipe.evaluate.seed_of(recipe.seed)
    runs = Runs(
        program=running_digest(inputs),
        policy=str(inputs.params["policy"]),
        source=f"evaluate:{split}",
        seed=seed,
        iteration=0,
        draws=(seed, "evaluate", split),
    )
    rows = read_split(inputs, split)[: recipe.evaluate.limit]
    return {row["example_id"]: runs.of(row, recipe.evaluate.samples) for row in rows}


def _row(finished: Finished, policy: str) -> dict[str, Any]:
    job, outcome = finished.job, finished.outcome
    return {
        "policy": policy,
        "example_id": job.example_id,
        "sample": job.index,
        "score": outcome.score,
        "parts": outcome.parts,
        "output": outcome.output,
        "status": outcome.status,
        "error": outcome.error,
        "rollout_id": job.rollout_id,
        "calls": len(finished.invocations),
        "prompt_tokens": _tokens(finished.invocations, "prompt_ids"),
        "completion_tokens": _tokens(finished.invocations, "completion_ids"),
    }


def _tokens(calls: list[dict[str, Any]], column: str) -> int | None:
    """Tokens of all calls of a run; None where those of one are not known: a server of text, a call that broke off."""
    if any(call[column] is None and call["finish_reason"] != "context_overflow" for call in calls):
        return None  # a prompt that left no room has no completion, and that is known
    return sum(len(call[column] or ()) for call in calls)
