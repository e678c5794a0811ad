"""Sampling a set of examples into shards, one per example, so that a killed stage takes up where it was."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from schemas.errors import DataError
from schemas.examples import EXAMPLES
from schemas.execution import Execution
from schemas.judge_calls import JUDGE_CALLS
from schemas.manifest import TELEMETRY
from schemas.parquet import read_rows, read_table, write_table
from schemas.recipe import Recipe
from schemas.recipe_data import SamplingSection
from schemas.scores import LATENCY
from schemas.table import TableSpec
from stages.contract import Inputs, Out
from stages.engines.factory import base_digests, make_endpoints, make_engine, policy_adapters
from stages.engines.interface import Sampling
from stages.programs.clerk import Clerk
from stages.programs.desk import Desk, Shape
from stages.programs.judging import judging_of
from stages.programs.load import Program
from stages.programs.run import Job
from stages.programs.runner import run_programs
from stages.programs.session import Session
from stages.programs.shared import Collector, Crew, Shared


def read_split(inputs: Inputs, split: str) -> list[dict[str, Any]]:
    """The examples of one split, sorted by example_id.

    Raises:
        DataError: when it has none; names the splits there are.
    """
    file = inputs["examples"].file("examples.parquet")
    rows = read_rows(file, EXAMPLES)
    chosen = sorted((row for row in rows if row["split"] == split), key=lambda row: row["example_id"])
    if not chosen:
        known = ", ".join(sorted({row["split"] for row in rows})) or "none"
        raise DataError(f"{file}: split '{split}' has no examples; splits there: {known}")
    return chosen


def open_session(
    recipe: Recipe,
    execution: Execution,
    inputs: Inputs,
    sampling: SamplingSection,
    parse_retries: int,
    *,
    judge_seed: int | None = None,
) -> Session:
    """The engine with the policy to sample from, and the recipe's other LMs.

    Args:
        recipe: the stage's.
        execution: the stage's.
        inputs: the stage's.
        sampling: of the student, where a call says nothing of its own.
        parse_retries: further attempts at a completion that does not parse.
        judge_seed: of the draws of judges; default: the recipe's.

    Raises:
        RecipeError, DataError: as the parts of it do.
    """
    digests = base_digests(inputs)
    return Session(
        engine=make_engine(recipe, execution, inputs),
        origin={"tokenizer": digests["tokenizer"], "template": digests["template"]},
        adapters=policy_adapters(inputs),
        sampling=Sampling(sampling.temperature, sampling.top_p, sampling.top_k, sampling.max_new_tokens),
        lms=recipe.lms,
        endpoints=make_endpoints(recipe),
        parse_retries=parse_retries,
        timeout_s=recipe.program.timeout_s,
        judging=judging_of(recipe, execution, digests["base"], recipe.seed if judge_seed is None else judge_seed),
    )


def sample(
    program: Program,
    waves: Iterable[Mapping[str, Sequence[Job]]],
    open_: Callable[[], Session],
    out: Out,
    *,
    shape: Shape,
    concurrency: int,
    shared: Shared | None = None,
) -> None:
    """Make every run whose example has no shard yet, and commit an example's shards once all its runs are done.

    Args:
        program: what to run.
        waves: runs by example_id, no example in two of them. A wave is asked for once all before it are committed.
        open_: makes the session; not called when nothing is left to do.
        out: where shards go: `<table>/<example_id>.parquet` and `invocations/<example_id>.parquet`. Calls of the
            metric, where it makes any, end as `judge_calls.parquet`; what a timed shape is timed with, as
            `telemetry/latency.parquet`.
        shape: the table.
        concurrency: runs in flight at once.
        shared: who makes the runs; None: this process. What is committed is the same.

    Raises:
        StageError: when every run ended in a failure of the metric or of the engine. Nothing of it is committed, so
            that the stage can be run again once the cause is mended.
    """
    make = (
        _here(program, open_, out, shape, concurrency)
        if shared is None
        else _elsewhere(shared, open_, out, shape, concurrency)
    )
    total = 0
    for jobs in waves:
        done = {Path(name).stem for name in out.committed(f"{shape.spec.name}/")}
        left = {example_id: jobs[example_id] for example_id in sorted(jobs) if example_id not in done}
        total += sum(map(len, jobs.values()))
        if left:
            make(left, total - sum(map(len, left.values())), total, bool(done))
    if out.committed(f"{JUDGE_CALLS.name}/"):
        compact(out, JUDGE_CALLS)
    if shape.timed:
        compact(out, LATENCY, below=TELEMETRY)


Make = Callable[[Mapping[str, Sequence[Job]], int, int, bool], None]
"""Makes and commits runs; also told how many were there before, of how many, and whether any was committed."""


def _here(program: Program, open_: Callable[[], Session], out: Out, shape: Shape, concurrency: int) -> Make:
    session: Session | None = None

    def make(jobs: Mapping[str, Sequence[Job]], finished: int, total: int, some_before: bool) -> None:
        nonlocal session
        session = session or open_()
        sizes = {example_id: len(runs) for example_id, runs in jobs.items()}
        desk = Desk(out, shape, session, total=total, sizes=sizes, finished=finished)
        with Clerk(ahead=concurrency) as clerk:  # alone with `out` until it has left
            for run in run_programs(program, [job for runs in jobs.values() for job in runs], session, concurrency):
                clerk.do(desk.take, run)
        desk.close(some_before=some_before)

    return make


def _elsewhere(shared: Shared, open_: Callable[[], Session], out: Out, shape: Shape, concurrency: int) -> Make:
    crew = Crew(shared.load, shared.check, open_, shape, concurrency)
    collector = Collector(out, shape, crew, shared.workers)
    return lambda jobs, finished, total, some_before: collector.collect(
        jobs, finished=finished, total=total, some_before=some_before
    )


def compact(out: Out, spec: TableSpec, *, keep: bool = True, below: str = "") -> pa.Table:
    """All shards of a table, in a folder `below`, as one; committed in their place unless `keep` is off.

    Sorted by example_id and then as in the shards.
    """
    shards = out.committed(f"{below}{spec.name}/")
    table = read_table([shards[name] for name in sorted(shards)], spec, validate=False)  # done as they were written
    if keep:
        draft = out.scratch / f"{spec.name}.parquet"
        write_table(table, draft, spec)
        out.commit_shard(f"{below}{spec.name}.parquet", draft)
    out.drop(f"{below}{spec.name}/")
    return table
