"""Sampling a set of examples into shards, one per example, so that a killed stage takes up where it was."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa

from schemas.errors import DataError, StageError
from schemas.examples import EXAMPLES
from schemas.execution import Execution
from schemas.judge_calls import JUDGE_CALLS
from schemas.manifest import TELEMETRY
from schemas.parquet import read_rows, read_table, write_table
from schemas.recipe import Recipe
from schemas.recipe_data import SamplingSection
from schemas.rollouts import INVOCATIONS
from schemas.scores import LATENCY
from schemas.table import TableSpec
from stages.contract import Inputs, Out
from stages.engines.factory import base_digests, make_endpoints, make_engine, policy_adapters
from stages.engines.interface import EngineUsage, Sampling
from stages.programs.clerk import Clerk
from stages.programs.judging import judging_of
from stages.programs.load import Program
from stages.programs.run import Finished, Job
from stages.programs.runner import run_programs
from stages.programs.session import Session
from stages.programs.worth import OURS


@dataclass(frozen=True)
class Shape:
    """Which table a stage makes of its runs, and how a run becomes a row of it."""

    spec: TableSpec
    unit: str
    """What progress counts."""
    row: Callable[[Finished], dict[str, Any]]
    timed: bool = False
    """Whether how long each run took is kept, in the telemetry."""


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

    Raises:
        StageError: when every run ended in a failure of the metric or of the engine. Nothing of it is committed, so
            that the stage can be run again once the cause is mended.
    """
    session: Session | None = None
    total = 0
    for jobs in waves:
        done = {Path(name).stem for name in out.committed(f"{shape.spec.name}/")}
        left = [job for example_id in sorted(jobs) if example_id not in done for job in jobs[example_id]]
        total += sum(map(len, jobs.values()))
        if not left:
            continue
        session = session or open_()
        desk = _Desk(out, shape, session, total=total, sizes=_sizes(jobs))
        desk.finished = total - len(left)
        with Clerk(ahead=concurrency) as clerk:  # alone with `out` until it has left
            for finished in run_programs(program, left, session, concurrency):
                clerk.do(desk.take, finished)
        desk.close(some_before=bool(done))
    if out.committed(f"{JUDGE_CALLS.name}/"):
        compact(out, JUDGE_CALLS)
    if shape.timed:
        compact(out, LATENCY, below=TELEMETRY)


def _sizes(jobs: Mapping[str, Sequence[Job]]) -> dict[str, int]:
    return {example_id: len(runs) for example_id, runs in jobs.items()}


@dataclass
class _Desk:
    """Collects finished runs by example and commits the examples that are complete."""

    out: Out
    shape: Shape
    session: Session
    total: int
    sizes: Mapping[str, int]
    finished: int = 0
    committed: bool = False
    open: dict[str, list[Finished]] = field(default_factory=dict)
    held: list[list[Finished]] = field(default_factory=list)
    """Examples of which every run failed for a reason that is not the model's."""
    counted: dict[str, float] = field(default_factory=dict)
    started: float = field(default_factory=time.monotonic)

    def __post_init__(self) -> None:
        self.counted = _figures(self.session)
        self._tokens_before = self.session.engine.usage.completion_tokens

    def take(self, finished: Finished) -> None:
        runs = self.open.setdefault(finished.job.example_id, [])
        runs.append(finished)
        self.finished += 1
        seconds = max(time.monotonic() - self.started, 1e-9)
        rate = (self.session.engine.usage.completion_tokens - self._tokens_before) / seconds
        self.out.progress(self.finished, self.total, self.shape.unit, tokens_per_second=round(rate, 1))
        if len(runs) == self.sizes[finished.job.example_id]:
            del self.open[finished.job.example_id]
            if all(run.outcome.status in OURS for run in runs):
                self.held.append(runs)
            else:
                self._commit(runs)

    def close(self, *, some_before: bool) -> None:
        assert not self.open, f"{len(self.open)} examples are incomplete"
        if self.held and not self.committed and not some_before:
            raise StageError(_all_failed([run for runs in self.held for run in runs], self.shape.unit))
        for runs in self.held:
            self._commit(runs)

    def _commit(self, runs: list[Finished]) -> None:
        """The calls first: an example counts as done when its shard of the stage's own table is there."""
        runs.sort(key=lambda run: run.job.index)
        name = f"{runs[0].job.example_id}.parquet"
        _write(self.out, f"invocations/{name}", [row for run in runs for row in run.invocations], INVOCATIONS)
        if self.shape.timed:
            _write(self.out, f"{TELEMETRY}{LATENCY.name}/{name}", [_seconds(run) for run in runs], LATENCY)
        if judged := [row for run in runs for row in run.judge_calls]:
            _write(self.out, f"{JUDGE_CALLS.name}/{name}", judged, JUDGE_CALLS)
        _write(self.out, f"{self.shape.spec.name}/{name}", [self.shape.row(run) for run in runs], self.shape.spec)
        self.committed = True
        figures = _figures(self.session)
        self.out.telemetry(**{key: value - self.counted.get(key, 0.0) for key, value in figures.items()})
        self.counted = figures
        if retries := sum(run.metric_retries for run in runs):
            self.out.telemetry(metric_retries=float(retries))


def _seconds(run: Finished) -> dict[str, Any]:
    return {"example_id": run.job.example_id, "sample": run.job.index, "seconds": run.seconds}


def _figures(session: Session) -> dict[str, float]:
    answers = session.judging.answers
    judged = {"judge_answers_remembered": float(answers.remembered)} if answers and answers.remembered else {}
    return judged | session_figures(session)


def session_figures(session: Session) -> dict[str, float]:
    """What a session's engine and LMs have done so far, by the names of the telemetry."""
    return usage_figures(session.engine.usage) | session.spending.figures()


def usage_figures(usage: EngineUsage) -> dict[str, float]:
    """What an engine has done so far, by the names of the telemetry."""
    figures = {
        "prompt_tokens": float(usage.prompt_tokens),
        "prefilled_tokens": float(usage.prefilled_tokens),
        "completion_tokens": float(usage.completion_tokens),
        "engine_batches": float(usage.batches),
        "engine_seconds": usage.seconds,
    }
    if usage.elsewhere:
        figures |= {f"server.{name}": figures[name] for name in ("prompt_tokens", "completion_tokens")}
        figures |= {"server.calls": figures["engine_batches"], "server.untold_calls": float(usage.untold)}
    return figures


def _all_failed(runs: Sequence[Finished], unit: str) -> str:
    first = min(runs, key=lambda run: (run.job.example_id, run.job.index))
    statuses = {run.outcome.status for run in runs}
    what = "the metric failed" if statuses == {"metric_error"} else "the engine failed"
    if len(statuses) > 1:
        what = "the engine or the metric failed"
    return (
        f"{what} in all {len(runs)} {unit}. The first ({first.job.example_id}, {first.job.index}) says: "
        f"{first.outcome.error}. Mend that and run again; nothing of them was kept."
    )


def _write(out: Out, name: str, rows: Sequence[dict[str, Any]], spec: TableSpec) -> None:
    draft = out.scratch / "shard.parquet"
    write_table(rows, draft, spec)
    out.commit_shard(name, draft)


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
