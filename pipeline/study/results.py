"""What came of the runs of a study: a score each, and what it cost to get there."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from pipeline.reporting.costs import collect_costs
from pipeline.reporting.opened import open_run, telemetry
from pipeline.store import Store
from pipeline.study.runs import ARTIFACTS, PlannedRun
from stages.contract import Artifact

NOT_SPENT_ON_IT = frozenset({"examples", "program", "base", "evaluate", "drift"})
"""Stages whose cost is not that of the strategy: preparing and measuring."""
SAMPLING, TRAINED = frozenset({"rollout", "prompts"}), "train"


@dataclass(frozen=True)
class Cost:
    """What a strategy spent to make its program, scoring not counted. None where no stage told."""

    core_seconds: float | None
    """Seconds of processor cores."""
    seconds: float | None
    """Seconds by the clock: of the one GPU, where there is one."""
    sampled_tokens: float | None
    """Tokens of completions, in rollouts and in trials of prompts."""
    trained_tokens: float | None
    """Tokens of the rows that were trained on; a stage that had nothing to train on tells of none."""


@dataclass(frozen=True)
class Result:
    """One run: its score on the study's split, from one evaluate artifact."""

    task: str
    strategy: str
    seed: int
    score: float
    examples: int
    failed: int
    """Program runs of the evaluation that failed; they count with `evaluate.failure_score`."""
    iterations: int
    key: str
    """Of the evaluate artifact; runs that share it were scored once."""
    cost: Cost
    artifacts: tuple[tuple[str, str], ...]
    """(stage, key) of everything that the run consists of."""
    engines: tuple[str, ...] = ()
    """What sampled the score; empty where that was not counted."""


@dataclass(frozen=True)
class Failure:
    """A run that could not be finished."""

    task: str
    strategy: str
    seed: int
    error: str


Outcome = Result | Failure


def result_of(run: PlannedRun, scores: Artifact) -> Result:
    """The result of a finished run, from its scores and the telemetry of its artifacts."""
    opened = open_run(run.folder)
    metrics = scores.manifest.metrics
    return Result(
        task=run.task,
        strategy=run.strategy,
        seed=run.seed,
        score=float(metrics["mean"]),
        examples=int(metrics["n"]),
        failed=sum(metrics["failures"].values()),
        iterations=len(opened.state.iterations),
        key=scores.manifest.key,
        cost=_cost(run.folder),
        artifacts=tuple((stage, key) for stage, _, key in opened.chosen()),
        engines=tuple(sorted(metrics.get("engines") or {})),
    )


def _cost(folder: Path) -> Cost:
    figures = {cost.stage: cost.figures for cost in collect_costs(open_run(folder))}
    spent = {stage: named for stage, named in figures.items() if stage not in NOT_SPENT_ON_IT}
    return Cost(
        core_seconds=_sum([named.get("cpu_seconds") for named in spent.values()]),
        seconds=_sum([named.get("seconds") for named in spent.values()]),
        sampled_tokens=_sum([named.get("completion_tokens") for stage, named in spent.items() if stage in SAMPLING]),
        trained_tokens=spent.get(TRAINED, {}).get("train_row_tokens", 0.0),
    )


def _sum(values: Sequence[float | None]) -> float | None:
    """The sum; 0 of nothing, None where a value is not known."""
    known = [value for value in values if value is not None]
    return sum(known) if len(known) == len(values) else None


def total_seconds(folder: Path, results: Sequence[Result]) -> dict[str, float]:
    """Seconds of everything that the study made, scoring included, each artifact once: by core and by the clock."""
    store = Store(folder / ARTIFACTS)
    totals = {"cpu_seconds": 0.0, "seconds": 0.0}
    for stage, key in sorted({artifact for result in results for artifact in result.artifacts}):
        artifact = store.find(stage, key)
        figures = telemetry(artifact) if artifact else {}
        totals = {name: total + figures.get(name, 0.0) for name, total in totals.items()}
    return totals
