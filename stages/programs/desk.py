"""Finished program runs become shards of an example each: its runs, their calls, what they cost."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from schemas.errors import StageError
from schemas.judge_calls import JUDGE_CALLS
from schemas.manifest import TELEMETRY
from schemas.parquet import write_table
from schemas.rollouts import INVOCATIONS, NOT_OF_THE_PROGRAM
from schemas.scores import LATENCY
from schemas.table import TableSpec
from stages.contract import Out
from stages.engines.interface import EngineUsage
from stages.programs.run import Finished
from stages.programs.session import Session


@dataclass(frozen=True)
class Shape:
    """Which table a stage makes of its runs, and how a run becomes a row of it."""

    spec: TableSpec
    unit: str
    """What progress counts."""
    row: Callable[[Finished], dict[str, Any]]
    timed: bool = False
    """Whether how long each run took is kept, in the telemetry."""


@dataclass(frozen=True)
class Failure:
    """A run that failed for a reason that is not the model's."""

    example_id: str
    index: int
    status: str
    error: str | None


@dataclass
class Desk:
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
        """Count a run, and commit its example where that is complete by it."""
        runs = self.open.setdefault(finished.job.example_id, [])
        runs.append(finished)
        self.finished += 1
        seconds = max(time.monotonic() - self.started, 1e-9)
        rate = (self.session.engine.usage.completion_tokens - self._tokens_before) / seconds
        self.out.progress(self.finished, self.total, self.shape.unit, tokens_per_second=round(rate, 1))
        if len(runs) == self.sizes[finished.job.example_id]:
            del self.open[finished.job.example_id]
            if all(run.outcome.status in NOT_OF_THE_PROGRAM for run in runs):
                self.held.append(runs)
            else:
                self.commit(runs)

    def close(self, *, some_before: bool) -> None:
        """Commit what was held, unless nothing else was, now or before.

        Raises:
            StageError: in that case: every run failed for a reason that can be mended.
        """
        assert not self.open, f"{len(self.open)} examples are incomplete"
        if self.held and not self.committed and not some_before:
            raise StageError(all_failed([fail for runs in self.held for fail in failures(runs)], self.shape.unit))
        for runs in self.held:
            self.commit(runs)

    def commit(self, runs: list[Finished]) -> None:
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


def failures(runs: Sequence[Finished]) -> list[Failure]:
    """What became of runs that all failed."""
    return [Failure(run.job.example_id, run.job.index, run.outcome.status, run.outcome.error) for run in runs]


def all_failed(failed: Sequence[Failure], unit: str) -> str:
    """The message where no run of a stage came to anything."""
    first = min(failed, key=lambda failure: (failure.example_id, failure.index))
    statuses = {failure.status for failure in failed}
    what = "the metric failed" if statuses == {"metric_error"} else "the engine failed"
    if len(statuses) > 1:
        what = "the engine or the metric failed"
    return (
        f"{what} in all {len(failed)} {unit}. The first ({first.example_id}, {first.index}) says: "
        f"{first.error}. Mend that and run again; nothing of them was kept."
    )


def _write(out: Out, name: str, rows: Sequence[dict[str, Any]], spec: TableSpec) -> None:
    draft = out.scratch / "shard.parquet"
    write_table(rows, draft, spec)
    out.commit_shard(name, draft)
