"""Which rollouts the page holds: the best, the worst, the failed, and some drawn of each module, within bounds."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import polars as pl

from pipeline.browsing.sources import Rolled, rolled, scan
from pipeline.reporting.opened import OpenRun
from schemas.canonical import digest
from schemas.manifest import FileEntry
from schemas.rollouts import INVOCATIONS, ROLLOUTS

ITERATIONS = 8
"""Iterations that samples are taken of: the first, the last, and others spread evenly between them."""
PER_KIND = 3
"""Of each kind, of an iteration; each of another example."""
ROLLOUTS_SHOWN = 72
_NARROW = ["rollout_id", "example_id", "rollout_index", "reward", "status"]


@dataclass(frozen=True)
class Pick:
    """A rollout that was chosen, and why: best, worst, failed or drawn."""

    item: Rolled
    rollout_id: str
    kind: str


@dataclass(frozen=True)
class Choice:
    """The rollouts that were chosen, most wanted first, and what they were chosen from."""

    picks: tuple[Pick, ...]
    total: int
    """Rollouts of the run."""
    iterations: tuple[int | None, ...]
    """Those that samples were taken of."""


def choose(run: OpenRun) -> Choice:
    """A sample that the run's seed decides, of at most `ROLLOUTS_SHOWN` rollouts."""
    items = rolled(run)
    total = sum(entry.rows or 0 for item in items for entry in _tables(item))
    iterations = _spread(list(dict.fromkeys(item.iteration for item in items)))
    ranked = [_ranked(run, [item for item in items if item.iteration == iteration]) for iteration in iterations]
    picks = list(_in_turn(ranked))[:ROLLOUTS_SHOWN]
    return Choice(tuple(picks), total, tuple(iterations))


def _tables(item: Rolled) -> list[FileEntry]:
    return [entry for entry in item.artifact.manifest.files.values() if entry.table == ROLLOUTS.name]


def _spread(iterations: list[int | None]) -> list[int | None]:
    """At most `ITERATIONS` of them, the first and the last among them."""
    if len(iterations) <= ITERATIONS:
        return iterations
    return [iterations[round(step * (len(iterations) - 1) / (ITERATIONS - 1))] for step in range(ITERATIONS)]


def _in_turn(ranked: list[list[Pick]]) -> Iterator[Pick]:
    """One of each iteration, then another of each; the latest iterations first, since they matter most."""
    for rank in range(max(map(len, ranked), default=0)):
        yield from (own[rank] for own in reversed(ranked) if rank < len(own))


def _ranked(run: OpenRun, items: list[Rolled]) -> list[Pick]:
    """The picks of one iteration: one of each kind in turn."""
    frames = [
        scan(item.artifact, ROLLOUTS).select(*_NARROW, place=pl.lit(place, pl.Int32))
        for place, item in enumerate(items)
    ]
    table = pl.concat(frames).collect()
    extremes = _extremes(table)
    taken = {name for found in extremes.values() for name, _ in found}
    drawn = [found for found in _drawn(run, items) if found[0] not in taken]
    turns = [(kind, found) for kind, rows in (extremes | {"drawn": drawn}).items() for found in enumerate(rows)]
    turns.sort(key=lambda turn: turn[1][0])  # one of each kind, then the second ones
    return [Pick(items[place], name, kind) for kind, (_, (name, place)) in turns]


def _extremes(table: pl.DataFrame) -> dict[str, list[tuple[str, int]]]:
    """The best, the worst and the failed, each of another example; ties go to the lowest (example_id, index)."""
    last = ["example_id", "rollout_index", "rollout_id"]
    ok = table.filter((pl.col("status") == "ok") & pl.col("reward").is_not_null())
    best = _top(ok.sort("reward", *last, descending=[True, False, False, False]))
    rest = ok.filter(~pl.col("rollout_id").is_in([name for name, _ in best]))
    failed = table.filter(pl.col("status") != "ok")
    # Kinds of failure in turn, so that a frequent one hides no other.
    ways = failed.sort(last).with_columns(nth=pl.int_range(pl.len()).over("status"))
    return {"best": best, "failed": _top(ways.sort("nth", "status", *last)), "worst": _top(rest.sort("reward", *last))}


def _top(ordered: pl.DataFrame) -> list[tuple[str, int]]:
    """(rollout_id, place) of the first rows, each of another example."""
    first = ordered.unique("example_id", keep="first", maintain_order=True).head(PER_KIND)
    return list(first.select("rollout_id", "place").iter_rows())


def _drawn(run: OpenRun, items: list[Rolled]) -> list[tuple[str, int]]:
    """For each module one rollout that called it, drawn by the run's seed."""
    calls = [scan(item.artifact, INVOCATIONS).select("rollout_id", "module") for item in items]
    frames = [frame.with_columns(place=pl.lit(place, pl.Int32)) for place, frame in enumerate(calls)]
    callers = pl.concat(frames).unique().sort("module", "rollout_id", "place").collect()
    chosen: dict[str, int] = {}
    for (module,), rows in callers.group_by("module", maintain_order=True):
        draw = int(digest([run.recipe.seed, "browse", items[0].iteration, module])[:12], 16) % rows.height
        name, place = rows.row(draw, named=False)[0::2]
        chosen.setdefault(name, place)
    return list(chosen.items())
