"""The rollout stage: program runs on this iteration's examples, every LM call recorded with its ids and log-probs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import polars as pl

from schemas.canonical import seed_from
from schemas.errors import RecipeError
from schemas.execution import Execution
from schemas.recipe import Recipe
from schemas.rollouts import INVOCATIONS, ROLLOUTS, rollout_id
from stages.contract import Inputs, Out
from stages.programs.figures import call_figures, first_error, status_counts
from stages.programs.load import load_program
from stages.programs.run import Finished, Job
from stages.programs.shards import Shape, compact, open_session, read_split, sample

NAME = "rollout"
VERSION = 1
SOURCE = "student"


def recipe_slice(recipe: Recipe) -> dict[str, Any]:
    """What decides which runs are made and how they are sampled."""
    return {
        "seed": recipe.seed,
        "model": {"dtype": recipe.model.dtype, "context": recipe.model.context},
        "lms": {name: lm.model_dump(mode="json") for name, lm in recipe.lms.items()},
        "program": {"timeout_s": recipe.program.timeout_s},
        "examples": {"train": recipe.examples.train},
        "rollout": recipe.rollout.model_dump(mode="json"),
    }


def run(inputs: Inputs, recipe: Recipe, execution: Execution, out: Out) -> dict[str, Any]:
    """Write rollouts.parquet and invocations.parquet, sorted by (example_id, rollout_index[, call_index]).

    Params: `iteration`, `policy`. Artifacts: `examples`, `program`, `base`, and `adapter` for a trained policy.

    Raises:
        RecipeError, DataError: for a program, split or model that cannot be used.
        StageError: when the metric or the engine failed in every run.
    """
    iteration = int(inputs.params["iteration"])
    program = load_program(recipe, inputs.root)
    jobs = plan_jobs(recipe, inputs, iteration)
    section = recipe.rollout

    def row(finished: Finished) -> dict[str, Any]:
        return _row(finished, iteration, str(inputs.params["policy"]), inputs["program"].digest)

    sample(
        program,
        jobs,
        lambda: open_session(recipe, execution, inputs, section.sampling, section.parse_retries),
        out,
        shape=Shape(ROLLOUTS, "rollouts", row),
        concurrency=execution.concurrency,
    )
    rollouts = pl.DataFrame(compact(out, ROLLOUTS))
    invocations = pl.DataFrame(compact(out, INVOCATIONS))
    rewards = rollouts.filter(pl.col("status") == "ok")["reward"]
    return {
        "examples": len(jobs),
        "rollouts": rollouts.height,
        "statuses": status_counts(rollouts),
        "first_error": first_error(rollouts),
        "mean_reward": None if rewards.is_empty() else rewards.mean(),
        **call_figures(invocations, rollouts.height, None if program.modules is None else list(program.modules)),
    }


def plan_jobs(recipe: Recipe, inputs: Inputs, iteration: int) -> dict[str, list[Job]]:
    """The runs of an iteration, by example_id.

    Raises:
        RecipeError: when the train split has fewer examples than an iteration needs.
    """
    split = recipe.examples.train
    rows = {row["example_id"]: row for row in read_split(inputs, split)}
    if recipe.rollout.examples > len(rows):
        raise RecipeError(
            f"rollout.examples is {recipe.rollout.examples}, but split '{split}' has {len(rows)}: an iteration draws "
            f"each example at most once. Set rollout.examples to at most {len(rows)}."
        )
    chosen = draw(sorted(rows), recipe.seed, iteration, recipe.rollout.examples)
    return {example_id: _jobs(recipe, inputs, iteration, rows[example_id]) for example_id in chosen}


def draw(ids: Sequence[str], seed: int, iteration: int, count: int) -> list[str]:
    """The examples of an iteration: the next `count` of a sequence of passes, each a seeded permutation of all ids.

    All ids are drawn equally often, give or take one. Where an iteration reaches into the next pass, ids that it has
    already come later in that pass, so that none is drawn twice in one iteration. `count` is at most len(ids).
    """
    assert 0 < count <= len(ids), (count, len(ids))
    queue: list[str] = []
    chosen: list[str] = []
    passes = 0
    for _ in range(iteration + 1):
        chosen, queue = queue[:count], queue[count:]
        if len(chosen) < count:
            order = sorted(ids, key=lambda name: seed_from(seed, "pass", passes, name))
            fresh = [name for name in order if name not in chosen][: count - len(chosen)]
            queue = [name for name in order if name not in fresh]
            chosen, passes = chosen + fresh, passes + 1
    return chosen


def _jobs(recipe: Recipe, inputs: Inputs, iteration: int, example: Mapping[str, Any]) -> list[Job]:
    policy, program = str(inputs.params["policy"]), inputs["program"].digest
    example_id = str(example["example_id"])
    return [
        Job(
            example_id=example_id,
            index=index,
            rollout_id=rollout_id(
                program=program,
                policy=policy,
                source=SOURCE,
                seed=recipe.seed,
                iteration=iteration,
                example_id=example_id,
                index=index,
            ),
            seed=seed_from(recipe.seed, "sample", iteration, example_id, index),
            inputs=example["inputs"],
            labels=example["labels"],
            metadata=example["metadata"],
        )
        for index in range(recipe.rollout.rollouts)
    ]


def _row(finished: Finished, iteration: int, policy: str, program: str) -> dict[str, Any]:
    job, outcome = finished.job, finished.outcome
    return {
        "example_id": job.example_id,
        "rollout_index": job.index,
        "rollout_id": job.rollout_id,
        "iteration": iteration,
        "source": SOURCE,
        "policy": policy,
        "program": program,
        "reward": outcome.score,
        "reward_parts": outcome.parts,
        "status": outcome.status,
        "error": outcome.error,
        "output": outcome.output,
        "seed": job.seed,
    }
