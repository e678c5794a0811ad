"""The teacher stage: one teacher's program runs on the examples that the student runs on in an iteration.

Beside what the rollout stage records, every trained call holds the same inputs in the student's prompt: that is what
is trained. An artifact of its own for each teacher, so that the student's rollouts, and other teachers', stay.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import polars as pl
import pyarrow as pa

from schemas.errors import DataError
from schemas.execution import Execution
from schemas.parquet import write_table
from schemas.recipe import Recipe
from schemas.recipe_data import SamplingSection
from schemas.rollouts import INVOCATIONS, ROLLOUTS
from stages.contract import Inputs, Out
from stages.programs.desk import Shape
from stages.programs.figures import call_figures, first_error, judge_figures, status_counts
from stages.programs.jobs import Runs
from stages.programs.load import Program, load_program
from stages.programs.prompts import frozen_prompts, running_digest
from stages.programs.session import Session
from stages.programs.shards import compact, open_session, read_split, sample
from stages.programs.shared import shared_by
from stages.programs.slices import run_slice
from stages.programs.teachers import as_teacher, program_digest, program_of
from stages.programs.transfer import Transfer

NAME = "teacher"
VERSION = 2


def recipe_slice(recipe: Recipe) -> dict[str, Any]:
    """What decides the runs beside the teacher itself, which stands in the params."""
    return {
        **run_slice(recipe),
        "examples": {"train": recipe.examples.train},
        "rollout": {
            "parse_retries": recipe.rollout.parse_retries,
            "temperature": recipe.rollout.sampling.temperature,
        },
    }


def run(inputs: Inputs, recipe: Recipe, execution: Execution, out: Out) -> dict[str, Any]:
    """Write rollouts.parquet and invocations.parquet as the rollout stage does, with source `teacher:NAME`.

    Params: `iteration`; `examples`, the ids to run on; `policy`, null for an endpoint; `teacher`, see
    `identify_teacher`. Artifacts: `examples`, `program` (the student's), `base`, `prompts` where the student's were
    optimized, and `adapter` for a trained policy of the student, where the teacher samples from that.

    Raises:
        RecipeError, DataError: for a program, example or model that cannot be used.
        StageError: when the metric or the engine failed in every run.
    """
    about = inputs.params["teacher"]
    frozen, own = frozen_prompts(inputs), program_of(recipe, about["name"])
    student = load_program(recipe, inputs.root, frozen)
    load = partial(load_program, own, inputs.root, None if "program" in about else frozen)
    teacher = load()
    runs, count = _runs(recipe, inputs), int(about["rollouts"])
    sample(
        teacher,
        [{row["example_id"]: runs.of(row, count) for row in _examples(recipe, inputs)}],
        partial(_open, recipe, execution, inputs),
        out,
        shape=Shape(ROLLOUTS, "rollouts", runs.row),
        concurrency=execution.concurrency,
        shared=shared_by(inputs, recipe, load),
    )
    rollouts = pl.DataFrame(compact(out, ROLLOUTS))
    transfer = _transfer(inputs, recipe, execution, teacher, student)
    invocations = pl.DataFrame(_transferred(compact(out, INVOCATIONS, keep=False), transfer, out))
    rewards = rollouts.filter(pl.col("status") == "ok")["reward"]
    return {
        "teacher": about["name"],
        "examples": rollouts["example_id"].n_unique(),
        "rollouts": rollouts.height,
        "statuses": status_counts(rollouts),
        "first_error": first_error(rollouts),
        "mean_reward": None if rewards.is_empty() else rewards.mean(),
        "transfer": dict(invocations.drop_nulls("transfer").group_by("transfer").len().sort("transfer").iter_rows()),
        **judge_figures(out),
        **call_figures(invocations, rollouts.height, None if teacher.modules is None else list(teacher.modules)),
    }


def _open(recipe: Recipe, execution: Execution, inputs: Inputs) -> Session:
    session = open_session(recipe, execution, inputs, recipe.rollout.sampling, recipe.rollout.parse_retries)
    return as_teacher(session, recipe, inputs.params["teacher"], inputs.root)


def _examples(recipe: Recipe, inputs: Inputs) -> list[dict[str, Any]]:
    wanted = set(inputs.params["examples"])
    rows = [row for row in read_split(inputs, recipe.examples.train) if row["example_id"] in wanted]
    if len(rows) < len(wanted):
        lost = sorted(wanted - {row["example_id"] for row in rows})
        raise DataError(f"{len(lost)} examples that the student ran on are not in the train split, as {lost[0]}")
    return rows


def _runs(recipe: Recipe, inputs: Inputs) -> Runs:
    """A teacher's runs. Their seeds know its name, so that another teacher moves none of them."""
    about, iteration = inputs.params["teacher"], int(inputs.params["iteration"])
    return Runs(
        program=program_digest(about, running_digest(inputs)),
        policy=inputs.params["policy"],
        source=f"teacher:{about['name']}",
        seed=recipe.seed,
        iteration=iteration,
        draws=(recipe.seed, "teacher", about["name"], iteration),
    )


def _transfer(inputs: Inputs, recipe: Recipe, execution: Execution, teacher: Program, student: Program) -> Transfer:
    from stages.engines.models import load_tokenizer
    from stages.training.build import checked_base

    base, about = checked_base(inputs, recipe, execution), inputs.params["teacher"]
    return Transfer(
        teacher=teacher,
        student=student,
        own_program="program" in about,
        tokenizer=load_tokenizer(base),
        origin={"tokenizer": base.tokenizer, "template": base.template},
        taught=SamplingSection.model_validate(about["sampling"]),
        learned=recipe.rollout.sampling,
    )


def _transferred(calls: pa.Table, transfer: Transfer, out: Out) -> pa.Table:
    """Commit the calls with the student's side of each."""
    rows = []
    for done, call in enumerate(calls.to_pylist(), 1):
        rows.append(transfer(call))
        if done % 256 == 0 or done == calls.num_rows:
            out.progress(done, calls.num_rows, "calls rendered for the student")
    draft = out.scratch / "invocations.parquet"
    table = pa.Table.from_pylist(rows, schema=INVOCATIONS.schema)
    write_table(table, draft, INVOCATIONS)
    out.commit_shard("invocations.parquet", draft)
    return table
