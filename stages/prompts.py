"""The prompts stage: DSPy's optimizers make instructions and demonstrations, which are frozen from then on."""

from __future__ import annotations

from typing import Any

from schemas.canonical import canonical_json, seed_from
from schemas.execution import Execution
from schemas.parquet import write_table
from schemas.prompts import TRIALS
from schemas.recipe import Recipe
from stages.contract import Inputs, Out
from stages.programs.load import load_program
from stages.programs.prompts import STATE, frozen_prompts
from stages.programs.shards import open_session, read_split
from stages.programs.slices import run_slice
from stages.prompting.memory import Memory
from stages.prompting.split import split_examples

NAME = "prompts"
VERSION = 2
TRIALS_FILE = "trials.parquet"
LOG = "telemetry/optimizer.log"
"""What the optimizer said while it worked, of the last process."""


def recipe_slice(recipe: Recipe) -> dict[str, Any]:
    """What decides which prompts are found: the optimizer, its examples and LMs, and how the student is sampled."""
    return {
        **run_slice(recipe),
        "examples": {"train": recipe.examples.train},
        "prompts": recipe.prompts.model_dump(mode="json", exclude={"every"}),
    }


def run(inputs: Inputs, recipe: Recipe, execution: Execution, out: Out) -> dict[str, Any]:
    """Write state.json (as DSPy's `program.load` reads it) and trials.parquet.

    Params: `iteration`, `policy`. Artifacts: `examples`, `program`, `base`, `adapter` for a trained policy, and
    `prompts`, the prompts to begin with, where they were optimized before. Only the train split is read.

    A killed stage does what it did before without asking an LM twice: see `stages/prompting/memory.py`.

    Raises:
        RecipeError, DataError: for a program, split or model that cannot be used.
        StageError: when an LM failed, when the metric failed in every run, or when the optimizer itself did.
    """
    from stages.prompting.job import Work, optimized

    iteration, section = int(inputs.params["iteration"]), recipe.prompts
    program = load_program(recipe, inputs.root, frozen_prompts(inputs))
    split = split_examples(read_split(inputs, recipe.examples.train), recipe, iteration)
    work = Work(
        recipe=recipe,
        program=program,
        split=split,
        session=open_session(recipe, execution, inputs, section.sampling, section.parse_retries),
        memory=Memory(out.scratch / "answers.jsonl"),
        seed=seed_from(recipe.seed, "prompts", iteration),
        threads=execution.concurrency,
    )
    log = out.scratch / "optimizer.log"
    found = optimized(work, out, log)
    write_table(found.rows, out.scratch / TRIALS_FILE, TRIALS)
    out.commit_shard(TRIALS_FILE, out.scratch / TRIALS_FILE)
    # `program.load` wants to compare versions: there are none to compare.
    state = {**found.state, "metadata": {"dependency_versions": {}}}
    (out.scratch / STATE).write_text(canonical_json(state) + "\n", encoding="utf-8")
    out.commit_shard(STATE, out.scratch / STATE)
    out.commit_shard(LOG, log)
    for reason, count in split.left_out.items():
        out.exclude(reason, count)
    return found.metrics
