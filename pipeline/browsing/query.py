"""All rollouts of a run, filtered and paged: lazy scans over the tables, nothing of them kept in memory."""

from __future__ import annotations

from typing import Any

import polars as pl

from pipeline.browsing.bounds import laid_out
from pipeline.browsing.filters import LOGGED, Filters
from pipeline.browsing.sources import Rolled, reading, rolled, scan
from pipeline.browsing.trajectory import inputs_of
from pipeline.reporting.opened import OpenRun
from schemas.examples import EXAMPLES
from schemas.rollouts import INVOCATIONS, ROLLOUTS
from stages.contract import Artifact

PAGE = 50
"""Rollouts of a page."""
_ABOUT = 90
_KEY = ["rollout_id", "example_id", "rollout_index", "source", "reward", "status"]
_LAST = ["example_id", "rollout_index", "rollout_id"]


def page_of(run: OpenRun, filters: Filters, page: int) -> dict[str, Any]:
    """A page of the rollouts that fit: `rows`, how many fit in `total`, `page` (from 1) and `pages`.

    Raises:
        DataError: when a table cannot be read.
    """
    with reading(run.folder):
        return _page_of(run, filters, page)


def _page_of(run: OpenRun, filters: Filters, page: int) -> dict[str, Any]:
    items = rolled(run)
    wanted = [place for place, item in enumerate(items) if filters.iteration in {None, _name(item.iteration)}]
    frames = [_fitting(run, items[place], filters).with_columns(place=pl.lit(place, pl.Int32)) for place in wanted]
    if not frames:
        return {"rows": [], "total": 0, "page": 1, "pages": 1}
    ordered = _sorted(pl.concat(frames), filters.sort).collect()
    pages = max(1, -(-ordered.height // PAGE))
    page = min(max(1, page), pages)
    rows = _described(run, items, ordered.slice((page - 1) * PAGE, PAGE))
    return {"rows": rows, "total": ordered.height, "page": page, "pages": pages}


def facets(run: OpenRun) -> dict[str, Any]:
    """What can be filtered by: iterations, modules, statuses, sources, and the range of rewards.

    Raises:
        DataError: when a table cannot be read.
    """
    with reading(run.folder):
        return _facets(run)


def _facets(run: OpenRun) -> dict[str, Any]:
    items = rolled(run)
    if not items:
        return {"iterations": [], "modules": [], "statuses": [], "sources": [], "low": None, "high": None, "total": 0}
    rollouts = pl.concat([scan(item.artifact, ROLLOUTS).select("status", "source", "reward") for item in items])
    calls = pl.concat([scan(item.artifact, INVOCATIONS).select("module") for item in items])
    told = rollouts.select(
        pl.col("status", "source").unique().sort().implode(),
        low=pl.min("reward"),
        high=pl.max("reward"),
        total=pl.len(),
    )
    row = told.collect().to_dicts()[0]
    return {
        "iterations": list(dict.fromkeys(item.iteration for item in items)),
        "modules": calls.unique().collect()["module"].sort().to_list(),
        "statuses": row["status"],
        "sources": row["source"],
        "low": row["low"],
        "high": row["high"],
        "total": row["total"],
    }


def _name(iteration: int | None) -> str:
    return LOGGED if iteration is None else str(iteration)


def _fitting(run: OpenRun, item: Rolled, filters: Filters) -> pl.LazyFrame:
    rows = scan(item.artifact, ROLLOUTS)
    for name in ("status", "source"):
        if (value := getattr(filters, name)) is not None:
            rows = rows.filter(pl.col(name) == value)
    if filters.reward_min is not None:
        rows = rows.filter(pl.col("reward") >= filters.reward_min)
    if filters.reward_max is not None:
        rows = rows.filter(pl.col("reward") <= filters.reward_max)
    if filters.module is not None:
        calls = scan(item.artifact, INVOCATIONS).filter(pl.col("module") == filters.module)
        rows = rows.join(calls.select("rollout_id").unique(), on="rollout_id", how="semi")
    if filters.q is not None:
        rows = _with_text(run, item, rows, filters.q)
    return rows.select(_KEY)


def _with_text(run: OpenRun, item: Rolled, rows: pl.LazyFrame, text: str) -> pl.LazyFrame:
    """The rows in which a text occurs, or in whose calls' completions or example's inputs it does."""

    def has(*columns: str) -> pl.Expr:
        found = pl.col(*columns).str.contains("(?i)" + pl.escape_regex(text))
        return pl.any_horizontal(found.fill_null(False))

    calls = scan(item.artifact, INVOCATIONS).filter(has("completion")).select("rollout_id").unique()
    examples = [scan(artifact, EXAMPLES) for artifact in (item.artifact, *_examples(run))]
    inputs = pl.concat([each.select("example_id", "inputs") for each in examples]).filter(has("inputs"))
    marked = rows.join(calls.with_columns(in_call=True), on="rollout_id", how="left").join(
        inputs.select("example_id", in_inputs=True).unique(), on="example_id", how="left"
    )
    own = has("rollout_id", "example_id", "output", "error")
    return marked.filter(own | pl.col("in_call").fill_null(False) | pl.col("in_inputs").fill_null(False))


def _examples(run: OpenRun) -> list[Artifact]:
    found = run.store.find("examples", run.state.setup.get("examples", ""))
    return [found] if found else []


def _sorted(rows: pl.LazyFrame, sort: str) -> pl.LazyFrame:
    """A total order: what has no reward comes last where rewards decide."""
    if sort == "order":
        return rows.sort("place", *_LAST)
    descending = [sort == "best", False, *[False] * len(_LAST)]
    return rows.sort("reward", "place", *_LAST, descending=descending, nulls_last=True)


def _described(run: OpenRun, items: list[Rolled], page: pl.DataFrame) -> list[dict[str, Any]]:
    """Rows of a page as the list shows them."""
    calls: dict[tuple[int, str], int] = {}
    inputs: dict[tuple[int, str], str] = {}
    for place in page["place"].unique().sort().to_list():
        own = page.filter(pl.col("place") == place)
        counts = scan(items[place].artifact, INVOCATIONS).filter(
            pl.col("rollout_id").is_in(own["rollout_id"].to_list())
        )
        made = counts.group_by("rollout_id").agg(pl.len()).collect()
        calls |= {(place, name): number for name, number in made.iter_rows()}
        found = inputs_of(run, items[place], own["example_id"].to_list())
        inputs |= {(place, name): text for name, text in found.items()}
    rows = []
    for row in page.iter_rows(named=True):
        place = row.pop("place")
        about = laid_out(inputs.get((place, row["example_id"])), 4 * _ABOUT)
        start = "" if about is None else about if isinstance(about, str) else about["head"]
        more = {"iteration": items[place].iteration, "artifact": items[place].artifact.digest}
        more |= {"about": " ".join(start.split())[:_ABOUT], "calls_made": calls.get((place, row["rollout_id"]), 0)}
        rows.append(row | more)
    return rows
