"""The study's table: means over seeds with intervals, what differs between strategies, and who is on the front."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from itertools import combinations
from statistics import fmean

from pipeline.costing import Spent
from pipeline.study.intervals import seed_interval
from pipeline.study.results import Cost, Failure, Outcome, Result
from pipeline.study.spec import Study
from stages.statistics import Interval

MEAN = "mean"
"""The column of means over tasks."""


@dataclass(frozen=True)
class Cell:
    """One strategy on one task, or over all of them."""

    interval: Interval
    """Over seeds. Without ends where the seeds share one evaluation: it says nothing about other seeds."""
    shared: bool
    """Whether all seeds have one and the same evaluation."""


@dataclass(frozen=True)
class Difference:
    """How much better `strategy` is than `other`, seed by seed, with its interval."""

    task: str
    strategy: str
    other: str
    interval: Interval


@dataclass(frozen=True)
class Table:
    """Everything that the study says, in order of its strategies and tasks."""

    name: str
    split: str
    seeds: tuple[int, ...]
    strategies: tuple[str, ...]
    tasks: tuple[str, ...]
    cells: Mapping[tuple[str, str], Cell]
    """By (strategy, task or `MEAN`); absent while nothing is finished."""
    differences: tuple[Difference, ...]
    costs: Mapping[tuple[str, str], Cost]
    """Mean cost of a run, by (strategy, task)."""
    examples: Mapping[str, int]
    """Examples that a task is scored on."""
    results: tuple[Result, ...]
    failures: tuple[Failure, ...]
    totals: Spent
    """What the whole study took, scoring included, each artifact once."""

    @property
    def columns(self) -> tuple[str, ...]:
        """The tasks, and their mean where there are several."""
        return (*self.tasks, MEAN) if len(self.tasks) > 1 else self.tasks

    @property
    def complete(self) -> bool:
        """Whether every run is finished."""
        return len(self.results) == len(self.seeds) * len(self.strategies) * len(self.tasks)


def make_table(study: Study, outcomes: Sequence[Outcome], totals: Spent) -> Table:
    """The table of a study, finished or not."""
    strategies = [strategy.name for strategy in study.strategies]
    tasks = [task.name for task in study.tasks]
    results = [outcome for outcome in outcomes if isinstance(outcome, Result)]
    grouped = {
        (strategy, task): [item for item in results if (item.strategy, item.task) == (strategy, task)]
        for strategy in strategies
        for task in tasks
    }
    known = {place: found for place, found in grouped.items() if found}
    means = _over_tasks(known, strategies, tasks)
    return Table(
        name=study.name,
        split=study.split,
        seeds=study.seeds,
        strategies=tuple(strategies),
        tasks=tuple(tasks),
        cells={place: _cell(found) for place, found in known.items()} | _mean_cells(known, means, tasks),
        differences=tuple(_differences(known, means, strategies, tasks)),
        costs={place: _mean_cost([item.cost for item in found]) for place, found in known.items()},
        examples={item.task: item.examples for item in results},
        results=tuple(results),
        failures=tuple(outcome for outcome in outcomes if isinstance(outcome, Failure)),
        totals=totals,
    )


def pareto_front(points: Mapping[str, tuple[float, float]]) -> list[str]:
    """Names of the points (cost, quality) that no other beats in one and equals or beats in the other, by cost."""

    def beaten(name: str) -> bool:
        cost, quality = points[name]
        return any(
            other_cost <= cost and other >= quality and (other_cost, other) != (cost, quality)
            for other_cost, other in points.values()
        )

    return sorted((name for name in points if not beaten(name)), key=lambda name: (*points[name], name))


Known = Mapping[tuple[str, str], list[Result]]


def _cell(found: Sequence[Result]) -> Cell:
    shared = len(found) > 1 and len({item.key for item in found}) == 1
    interval = seed_interval([item.score for item in found])
    return Cell(Interval(interval.estimate, None, None, interval.n) if shared else interval, shared)


def _over_tasks(known: Known, strategies: Sequence[str], tasks: Sequence[str]) -> dict[str, dict[int, float]]:
    """Per strategy and seed, the mean over several tasks; seeds that lack a task are left out."""
    means: dict[str, dict[int, float]] = {}
    if len(tasks) == 1:
        return means
    for strategy in strategies:
        by_seed: dict[int, list[float]] = {}
        for task in tasks:
            for item in known.get((strategy, task), []):
                by_seed.setdefault(item.seed, []).append(item.score)
        means[strategy] = {seed: fmean(scores) for seed, scores in by_seed.items() if len(scores) == len(tasks)}
    return means


def _mean_cells(
    known: Known, means: Mapping[str, Mapping[int, float]], tasks: Sequence[str]
) -> dict[tuple[str, str], Cell]:
    cells: dict[tuple[str, str], Cell] = {}
    for strategy, by_seed in means.items():
        if not by_seed:
            continue
        shared = all(_cell(known[strategy, task]).shared for task in tasks)
        interval = seed_interval(list(by_seed.values()))
        cells[strategy, MEAN] = Cell(
            Interval(interval.estimate, None, None, interval.n) if shared else interval, shared
        )
    return cells


def _differences(
    known: Known, means: Mapping[str, Mapping[int, float]], strategies: Sequence[str], tasks: Sequence[str]
) -> list[Difference]:
    found: list[Difference] = []
    for column in (*tasks, MEAN) if len(tasks) > 1 else tasks:
        for other, strategy in combinations(strategies, 2):
            of, against = (
                means[name] if column == MEAN else {item.seed: item.score for item in known.get((name, column), [])}
                for name in (strategy, other)
            )
            if pairs := [of[seed] - against[seed] for seed in sorted(of.keys() & against.keys())]:
                found.append(Difference(column, strategy, other, seed_interval(pairs)))
    return found


def _mean_cost(costs: Sequence[Cost]) -> Cost:
    def mean(values: list[float | None]) -> float | None:
        known = [value for value in values if value is not None]
        return fmean(known) if len(known) == len(values) else None

    names = [item.name for item in fields(Cost)]
    return Cost(**{name: mean([getattr(cost, name) for cost in costs]) for name in names})
