"""What came of the runs of a study: a score each, and what it cost to get there."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pipeline.costing import Spent, together
from pipeline.costs import Entry, ledger_of
from pipeline.reporting.opened import open_run
from pipeline.study.runs import PlannedRun
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
    """Seconds by the clock."""
    sampled_tokens: float | None
    """Tokens of completions, in rollouts and in trials of prompts."""
    trained_tokens: float | None
    """Tokens of the rows that were trained on; a stage that had nothing to train on tells of none."""
    gpu_seconds: float | None = None
    money: float | None = None
    """At the prices of the run's recipe."""


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
    entries: tuple[Entry, ...]
    """Everything that the run consists of, with what it took."""
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
    found = ledger_of(opened)
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
        cost=_cost(found.entries),
        entries=found.entries,
        engines=tuple(sorted(metrics.get("engines") or {})),
    )


def _cost(entries: Sequence[Entry]) -> Cost:
    spent = {stage: together(parts) for stage, parts in _by_stage(entries).items() if stage not in NOT_SPENT_ON_IT}
    whole = together(spent.values())
    return Cost(
        core_seconds=whole.core_seconds,
        seconds=whole.seconds,
        gpu_seconds=whole.gpu_seconds,
        sampled_tokens=together(part for stage, part in spent.items() if stage in SAMPLING).completion_tokens,
        trained_tokens=spent[TRAINED].trained_tokens if TRAINED in spent else 0,
        money=whole.money,
    )


def _by_stage(entries: Sequence[Entry]) -> dict[str, list[Spent]]:
    found: dict[str, list[Spent]] = {}
    for entry in entries:
        found.setdefault(entry.stage, []).append(entry.spent)
    return found


def total_spent(results: Sequence[Result]) -> Spent:
    """Everything that the study made, scoring included, each artifact once."""
    entries = {(entry.stage, entry.key): entry.spent for result in results for entry in result.entries}
    return together(entries[key] for key in sorted(entries))
