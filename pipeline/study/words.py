"""The study as Markdown: the table, the differences, the costs, and what to know before reading them."""

from __future__ import annotations

from collections.abc import Sequence

from pipeline.cost_forms import money
from pipeline.reporting.text import ABSENT, bounds, count, duration, number, plural, signed
from pipeline.study.strategies import title_of
from pipeline.study.table import MEAN, Cell, Table

Rows = list[list[str]]
MEANING = "Mean with 95 % interval; a star where it does not hold 0."


def markdown(table: Table, picture: str) -> str:
    """The study's page in Markdown; the same text is printed on a terminal.

    Args:
        table: of the study.
        picture: name of the SVG file beside the page.
    """
    parts = [
        f"# {table.name}",
        scored(table),
        grid(["strategy", *table.columns], score_rows(table)),
        *[f"Failed: {failure}" for failure in failures(table)],
        *(["## Differences, seed by seed", MEANING] if table.differences else []),
        grid(["task", "strategy", "against", "difference", "interval", ""], difference_rows(table)),
        f"## Cost of a run\n\n{spent(table)}",
        grid(
            ["task", "strategy", "core-seconds", "seconds", "sampled tokens", "trained tokens", "money"],
            cost_rows(table),
        ),
        f"![cost against quality]({picture})",
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def scored(table: Table) -> str:
    """What the numbers of the table are."""
    sets = ", ".join(f"{task} {count(examples)}" for task, examples in table.examples.items())
    done = "" if table.complete else f" Unfinished: {len(table.results)} of {_total(table)} runs."
    return (
        f"Score on the {table.split} split after the last iteration ({sets or 'nothing yet'} examples): mean over "
        f"{plural(len(table.seeds), 'seed')} with 95 % t interval. An interval over seeds speaks of the method on "
        f"these examples, not of other examples. Without an interval: the seeds share one evaluation.{done}"
        f"{''.join(map(_by_engines, mixed_engines(table).items()))}"
    )


def mixed_engines(table: Table) -> dict[str, list[str]]:
    """Tasks whose scores are not all of the same engines, and the engines."""
    known = [result for result in table.results if result.engines]
    kinds = {task: {result.engines for result in known if result.task == task} for task in table.tasks}
    return {task: sorted({name for kind in found for name in kind}) for task, found in kinds.items() if len(found) > 1}


def _by_engines(mixed: tuple[str, list[str]]) -> str:
    task, engines = mixed
    return f" Scores of {task} were sampled by different engines, which alone may move them: {', '.join(engines)}."


def spent(table: Table) -> str:
    """What the cost columns are, and what the whole study took."""
    return (
        "Means over seeds, of what makes the program: prompts, rollouts, groups and training. Scoring is not in it, "
        "and what several strategies share counts for each. The whole study, each artifact once and scoring included, "
        "took "
        f"{duration(table.totals.core_seconds)} of cores and {duration(table.totals.seconds)} by the clock."
    )


def score_rows(table: Table) -> Rows:
    """The table's rows."""
    return [
        [title_of(strategy), *(_cell(table.cells.get((strategy, column)), table) for column in table.columns)]
        for strategy in table.strategies
    ]


def difference_rows(table: Table) -> Rows:
    """A row for every two strategies on every task."""
    return [
        [
            "mean of tasks" if item.task == MEAN else item.task,
            title_of(item.strategy),
            title_of(item.other),
            signed(item.interval.estimate),
            ABSENT if item.interval.low is None else bounds(item.interval, sign=True),
            "*" if item.interval.above_zero or item.interval.below_zero else "",
        ]
        for item in table.differences
    ]


def cost_rows(table: Table) -> Rows:
    """A row for every strategy on every task."""
    return [
        [
            task,
            title_of(strategy),
            *map(count, (cost.core_seconds, cost.seconds, cost.sampled_tokens, cost.trained_tokens)),
            money(cost.money),
        ]
        for task in table.tasks
        for strategy in table.strategies
        if (cost := table.costs.get((strategy, task)))
    ]


def failures(table: Table) -> list[str]:
    """Runs that could not be finished, with their errors."""
    return [
        f"{item.task} · {title_of(item.strategy)} · seed {item.seed}: {item.error.splitlines()[0]}"
        for item in table.failures
    ]


def grid(head: Sequence[str], rows: Rows) -> str:
    """A Markdown table with aligned columns; empty without rows."""
    if not rows:
        return ""
    lines = [[_escaped(cell) for cell in line] for line in (head, *rows)]
    widths = [max(len(line[index]) for line in lines) for index in range(len(head))]
    ruled = [lines[0], ["-" * max(3, width) for width in widths], *lines[1:]]
    return "\n".join(
        f"| {' | '.join(cell.ljust(width) for cell, width in zip(line, widths, strict=True))} |" for line in ruled
    )


def _cell(cell: Cell | None, table: Table) -> str:
    if cell is None:
        return ABSENT
    shown = number(cell.interval.estimate)
    if cell.interval.low is not None:
        shown += f" {bounds(cell.interval)}"
    return shown if cell.interval.n == len(table.seeds) else f"{shown}, {plural(cell.interval.n, 'seed')}"


def _escaped(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def _total(table: Table) -> int:
    return len(table.seeds) * len(table.strategies) * len(table.tasks)
